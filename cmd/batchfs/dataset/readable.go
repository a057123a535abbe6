package dataset

import (
	"log/slog"
	"os"

	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
)

// Readable returns a split as readers of the mount see it now: with the files of the snapshot, or
// with the current ones if the split follows changes. It checks all files and reads the first
// batch.
func (s *Snapshot) Readable(split *config.Split, o *Opener) (*Dataset, error) {
	d, err := s.open(split, o)
	if err != nil {
		return nil, err
	}
	w := newWatcher(d, o, slog.New(slog.DiscardHandler), func(*Dataset) error { return nil })
	w.pass()
	v := w.view.Load()
	if v.err != nil {
		return nil, v.err
	}
	d = v.dataset
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
