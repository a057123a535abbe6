package dataset

import (
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"batchfs/cache"
	"batchfs/cache/blob"
)

// A Served split, or such a split under the settings of a path, is what a mount shows. It belongs to one version of the tokens. Its
// methods may be called concurrently.
type Served struct {
	*Dataset
	watch      *watcher
	origins    func() *Origins
	infoLen    func() int64
	set        func() *cache.WorkingSet
	prefetcher *blockPrefetcher // nil where nothing lies in a store
}

func newServed(d *Dataset, w *watcher) *Served {
	s := &Served{
		Dataset: d,
		watch:   w,
		origins: sync.OnceValue(d.Origins),
		infoLen: sync.OnceValue(func() int64 { return int64(len(d.Info())) }),
	}
	if d.isRemote() {
		s.set = sync.OnceValue(func() *cache.WorkingSet { return d.WorkingSet(filepath.Join(w.mountpoint, d.Split.Path())) })
		s.prefetcher = newBlockPrefetcher(d)
	}
	return s
}

// Served returns the split as a mount shows it, for a reader without a mount, which gets an error
// if token files change, whatever on_change says.
func (d *Dataset) Served() *Served { return newServed(d, newWatcher(d)) }

// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. Of objects, it has fetched what the
// batches need that follow.
func (s *Served) Read(dst []byte, k uint64, off int64) error {
	if s.prefetcher != nil {
		if set := s.set(); set != nil {
			set.Touch()
		}
		s.prefetcher.reads(k + uint64((off+int64(len(dst)))/s.prefetcher.bytes))
	}
	return s.Sequence.Read(dst, k, off)
}

// ReadOrigin fills dst with bytes of batch/<k>.json: see [Origins.Read].
func (s *Served) ReadOrigin(dst []byte, k uint64, off int64) error {
	return s.origins().Read(dst, k, off)
}

// RowsOf is how many rows of batch k are of a source.
func (s *Served) RowsOf(source int, k uint64) uint64 { return s.Sequence.RowsOf(source, k) }

// OriginLen is the length of batch/<k>.json.
func (s *Served) OriginLen() int64 { return s.origins().Len() }

// InfoLen is the length of info.json.
func (s *Served) InfoLen() int64 { return s.infoLen() }

// With is as [Dataset.With].
func (s *Served) With(settings string) (*Served, error) {
	d, err := s.Dataset.With(settings)
	if err != nil {
		return nil, err
	}
	return newServed(d, s.watch), nil
}

// Latest returns s, or, if the token files were replaced and the split follows changes, the same
// sequence over the new ones. It returns s and an error if no batch can be read: a file of a split
// that does not follow changes is wrong, or the settings do not suit the new tokens.
func (s *Served) Latest() (*Served, error) { return s.latest(s.watch.current(nil)) }

func (s *Served) latest(v *view) (*Served, error) {
	if err := s.watch.failure(v); err != nil {
		return s, err
	}
	return s.over(v.dataset)
}

// LatestWhole is Latest for files that show more than one batch. It also returns an error if
// changes could not be followed.
func (s *Served) LatestWhole(cancel <-chan struct{}) (*Served, error) {
	v := s.watch.current(cancel)
	now, err := s.latest(v)
	if err == nil && v.err != nil && v.wrong == nil {
		return s, v.err
	}
	return now, err
}

// LatestFor is Latest for batch k, whose files it checks. If they have changed and the split follows
// changes, it waits until they have been opened, or until cancel is closed. The error is
// syscall.ESTALE if they have changed and cannot be served.
func (s *Served) LatestFor(k uint64, cancel <-chan struct{}) (*Served, error) {
	var why error
	for try := range maxReloads {
		v := s.watch.current(cancel)
		now, err := s.latest(v)
		if err != nil {
			return s, err
		}
		var wrong blob.Blob
		if wrong, why = now.checkBatch(k); why == nil {
			return now, nil
		}
		if err := s.watch.handle(v, wrong, why, try == 0, cancel); err != nil {
			return s, err
		}
		if isClosed(cancel) {
			break
		}
	}
	return s, why
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Stalled returns how long a check of all token files has had no response, or 0.
func (s *Served) Stalled() time.Duration { return s.watch.stalled() }

// over returns the sequence over the tokens of d, another version of the split.
func (s *Served) over(d *Dataset) (_ *Served, err error) {
	if d.Version == s.Version {
		return s, nil
	}
	if s.Split.InPath() {
		if d, err = d.withSettings(s.Split); err != nil {
			return s, fmt.Errorf("the token files changed, and these settings do not suit the new ones: %w (%w)", err, syscall.ESTALE)
		}
	}
	return newServed(d, s.watch), nil
}
