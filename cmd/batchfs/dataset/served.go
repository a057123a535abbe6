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

// A Served is a split, possibly with the settings of a path, as a mount serves it. Each Served
// stands for one version of the tokens; [Served.Latest] returns that of the current version. It is
// safe for concurrent use.
type Served struct {
	*Dataset
	watch      *watcher
	batchBytes int64
	// These functions compute their result when they are first called. workingSet and prefetcher
	// are nil unless an array is in a store.
	origins    func() *Origins
	infoLen    func() int64
	workingSet func() *cache.WorkingSet
	prefetcher *blockPrefetcher
}

func newServed(d *Dataset, w *watcher) *Served {
	s := &Served{
		Dataset:    d,
		watch:      w,
		batchBytes: d.Sequence.Batch().Bytes(),
		origins:    sync.OnceValue(d.Origins),
		infoLen:    sync.OnceValue(func() int64 { return int64(len(d.Info())) }),
	}
	if d.isRemote() {
		s.workingSet = sync.OnceValue(func() *cache.WorkingSet { return d.WorkingSet(filepath.Join(w.mountpoint, d.Split.Path())) })
		s.prefetcher = newBlockPrefetcher(d)
	}
	return s
}

// Serve returns the split for a reader without a mount. If its token files change, reads fail, even
// with on_change = "follow".
func (d *Dataset) Serve() *Served { return newServed(d, newWatcher(d)) }

// Read fills dst with the bytes of batches k, k+1, …, starting at byte off of batch k. If the
// tokens are in a store, it also prefetches the blocks of the next batches. Beyond the end of the
// sequence, the error matches syscall.ENODATA.
func (s *Served) Read(dst []byte, k uint64, off int64) error {
	if err := s.CheckEnd(s.LastBatch(dst, k, off)); err != nil {
		return err
	}
	if s.prefetcher != nil {
		if set := s.workingSet(); set != nil {
			set.Touch()
		}
		s.prefetcher.batchRead(k + uint64((off+int64(len(dst)))/s.prefetcher.batchBytes))
	}
	return s.Sequence.Read(dst, k, off)
}

// LastBatch returns the last batch that Read touches.
func (s *Served) LastBatch(dst []byte, k uint64, off int64) uint64 {
	return k + uint64(max(off+int64(len(dst))-1, 0)/s.batchBytes)
}

// ReadBatchJSON fills dst with batch/<k>.json, starting at byte off; see [Origins.Read].
func (s *Served) ReadBatchJSON(dst []byte, k uint64, off int64) error {
	return s.origins().Read(dst, k, off)
}

// RowsOf returns the number of rows of batch k that come from a source.
func (s *Served) RowsOf(source int, k uint64) uint64 { return s.Sequence.RowsOf(source, k) }

// BatchJSONLen returns the size of every batch/<k>.json in bytes.
func (s *Served) BatchJSONLen() int64 { return s.origins().Len() }

// InfoLen returns the size of info.json in bytes.
func (s *Served) InfoLen() int64 { return s.infoLen() }

// With returns the split with other settings; see [Dataset.With].
func (s *Served) With(settings string) (*Served, error) {
	d, err := s.Dataset.With(settings)
	if err != nil {
		return nil, err
	}
	return newServed(d, s.watch), nil
}

// Latest returns s, or, if the split follows changes and its token files have changed, the same
// sequence over the new tokens. If no batch can be read, it returns s and an error: a file has
// changed or cannot be read and the split does not follow changes, or the settings do not fit the
// new tokens.
func (s *Served) Latest() (*Served, error) { return s.latest(s.watch.currentView(nil)) }

func (s *Served) latest(v *view) (*Served, error) {
	if err := s.watch.recheckWrongFile(v); err != nil {
		return s, err
	}
	return s.rebase(v.dataset)
}

// LatestWhole is like Latest, for files of the mount that have several batches. It also returns an
// error if some token file cannot be checked, or if a change could not be followed. If the split
// was idle, both functions wait up to a second for a check of its files; LatestWhole stops waiting
// when cancel is closed.
func (s *Served) LatestWhole(cancel <-chan struct{}) (*Served, error) {
	v := s.watch.currentView(cancel)
	latest, err := s.latest(v)
	if err == nil && v.err != nil && v.wrongFile == nil {
		return s, v.err
	}
	return latest, err
}

// LatestFor is like Latest, but also checks the files of batch k. If they have changed and the
// split follows changes, it waits until the new files are open, or until cancel is closed. If they
// cannot be served, the error matches syscall.ESTALE.
func (s *Served) LatestFor(k uint64, cancel <-chan struct{}) (*Served, error) {
	var checkErr error
	waited := false                    // for a process that writes to the file
	k = min(k, s.Sequence.Batches()-1) // no file has batches beyond the end, and reading them fails
	for range maxReloads {
		v := s.watch.currentView(cancel)
		latest, err := s.latest(v)
		if err != nil {
			return s, err
		}
		var wrongFile blob.Blob
		if wrongFile, checkErr = latest.checkBatch(k); checkErr == nil {
			return latest, nil
		}
		if err := s.watch.retryOrFail(v, wrongFile, checkErr, waited, cancel); err != nil {
			return s, err
		}
		waited = waited || v.beingWritten
		select {
		case <-cancel:
			return s, checkErr
		default:
		}
	}
	return s, checkErr
}

// Stalled returns how long the current check of all files has been waiting for one, or 0.
func (s *Served) Stalled() time.Duration { return s.watch.stalledFor() }

// rebase returns the same sequence over d, which may be another version of the split.
func (s *Served) rebase(d *Dataset) (_ *Served, err error) {
	if d.Version == s.Version {
		return s, nil
	}
	if s.Split.InPath() {
		if d, err = d.withSettings(s.Split); err != nil {
			return s, fmt.Errorf("the token files changed, and these settings do not fit the new ones: %w (%w)", err, syscall.ESTALE)
		}
	}
	return newServed(d, s.watch), nil
}
