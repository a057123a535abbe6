package dataset

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"batchfs/cache/blob"
	"batchfs/fs"
	"batchfs/fs/state"
)

// A MountedSequence is a sequence as a mount serves it: an [fs.Sequence]. It is safe for concurrent
// use.
type MountedSequence struct {
	watch      *watcher
	mountpoint string                      // part of the names of working sets
	shared     *state.Shared               // records which rows are read
	current    atomic.Pointer[FileBatches] // replaced with mu held

	mu       sync.Mutex // held while onChange is called
	onChange func(fs.BatchList)
}

func newMountedSequence(d *Dataset, w *watcher, mountpoint string, shared *state.Shared) *MountedSequence {
	s := &MountedSequence{watch: w, mountpoint: mountpoint, shared: shared, onChange: func(fs.BatchList) {}}
	s.current.Store(newFileBatches(d, mountpoint, shared))
	return s
}

// Current returns the batches that another method returned last.
func (s *MountedSequence) Current() fs.BatchList { return s.current.Load() }

// OnChange sets a function that gets the batches of changed token files before any request does.
func (s *MountedSequence) OnChange(f func(fs.BatchList)) { s.onChange = f }

// With returns the sequence under the settings of a path component; see [Dataset.With].
func (s *MountedSequence) With(settings string) (fs.Sequence, error) {
	b, _ := s.latest(s.watch.view.Load()) // reads of batches report the error
	d, err := b.Dataset.With(settings)
	if err != nil {
		return nil, err
	}
	return newMountedSequence(d, s.watch, s.mountpoint, s.shared), nil
}

// Latest returns the batches of the token files that the watcher has opened last. If no batch can
// be read, it also returns an error: a file has changed or cannot be read and the split does not
// follow changes, or the settings do not fit the new tokens. If the split was idle, it waits for a
// check of its files, for up to a second or until cancel is closed.
func (s *MountedSequence) Latest(cancel <-chan struct{}) (fs.BatchList, error) {
	return s.latest(s.watch.currentView(cancel))
}

func (s *MountedSequence) latest(v *view) (*FileBatches, error) {
	b := s.current.Load()
	switch {
	case v.wrongFile != nil:
		return b, v.err
	case v.dataset.Version == b.Version:
		return b, nil
	}
	return s.follow(v.dataset)
}

// follow makes d, of a later version of the tokens, the current one.
func (s *MountedSequence) follow(d *Dataset) (*FileBatches, error) {
	if old := s.current.Load(); old.Split.InPath() {
		var err error
		if d, err = d.withSettings(old.Split); err != nil {
			return old, fmt.Errorf("the token files changed, and these settings do not fit the new ones: %w (%w)", err, syscall.ESTALE)
		}
	}
	b := newFileBatches(d, s.mountpoint, s.shared)
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.current.Load(); now.Version >= d.Version { // another request was faster
		return now, nil
	}
	s.onChange(b)
	s.current.Store(b)
	return b, nil
}

// LatestWhole is like Latest, for files of the mount that have several batches. It also returns an
// error if some token file cannot be checked, or if a change could not be followed.
func (s *MountedSequence) LatestWhole(cancel <-chan struct{}) (fs.BatchList, error) {
	v := s.watch.currentView(cancel)
	b, err := s.latest(v)
	return b, cmp.Or(err, v.err)
}

const maxReopens = 10 // attempts of a request to follow changes

// LatestFor is like Latest, but also checks the files of batch k. If they have changed and the
// split follows changes, it waits until the new files are open, or until cancel is closed, and then
// returns [state.ErrAbandoned]. If they cannot be served, the error matches syscall.ESTALE.
func (s *MountedSequence) LatestFor(k uint64, cancel <-chan struct{}) (_ fs.BatchList, err error) {
	var b *FileBatches
	for attempt := range maxReopens {
		v := s.watch.currentView(cancel)
		if b, err = s.latest(v); err != nil {
			return b, err
		}
		var wrongFile blob.Blob
		// No file has batches beyond the end, and reading them fails.
		if wrongFile, err = b.checkBatch(min(k, b.spec.Batches-1)); err == nil {
			return b, nil
		}
		if failure := s.watch.retryOrFail(v, wrongFile, err, attempt, cancel); failure != nil {
			return b, failure
		}
		select {
		case <-cancel:
			return b, state.ErrAbandoned
		default:
		}
	}
	return b, err
}

// Stalled returns how long the current check of all files has been waiting for one, or 0.
func (s *MountedSequence) Stalled() time.Duration { return s.watch.stalledFor() }
