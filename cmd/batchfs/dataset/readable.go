package dataset

import (
	"log/slog"
	"os"

	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
)

// Readable returns a split as readers of a mount get it now: with the files of the snapshot or, where the split follows them and
// they changed, with those that are there now. The error says why batches cannot be read. It looks at all of the files, and reads
// the beginning of the batch that next takes first.
func (s *Snapshot) Readable(split *config.Split, o *Opener) (*Dataset, error) {
	was, err := s.open(split, o)
	if err != nil {
		return nil, err
	}
	w := newWatcher(was)
	w.opener, w.log, w.publish = o, slog.New(slog.DiscardHandler), func(*Dataset) error { return nil }
	w.pass()
	v := w.view.Load()
	if v.err != nil {
		return nil, v.err
	}
	d := v.dataset
	for b := range d.blobs() {
		if blob.IsRemote(b.Path()) {
			continue
		}
		file, err := os.Open(b.Path())
		if err != nil {
			return nil, err
		}
		file.Close()
	}
	return d, d.TryRead()
}
