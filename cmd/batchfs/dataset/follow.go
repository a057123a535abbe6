package dataset

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
)

// A followed split is served while its token files may change. With on_change = "follow" it is opened again when they do.
type followed struct {
	mountpoint string
	memory     config.Memory
	log        *slog.Logger
	changed    func(*Dataset) error // called with mu held, before other tokens are read
	mu         sync.Mutex
	now        *Dataset // guarded by mu
}

// current returns the split with its files as they are now. It looks at the files of batch k of d, as checkBatch does, and at all of them
// once a second. If the split does not follow a change, or cannot, current returns the old dataset and syscall.ESTALE.
func (f *followed) current(d *Dataset, k uint64) (*Dataset, error) {
	f.mu.Lock()
	now := f.now
	f.mu.Unlock()
	err := now.check() // without the lock: a file may give no answer
	if err == nil && d.Version == now.Version {
		err = d.checkBatch(k)
	}
	if err != nil && now.Split.OnChange == "follow" {
		return f.follow(now, err)
	}
	return now, err
}

// follow opens the split again if its files have changed, as why says.
func (f *followed) follow(old *Dataset, why error) (*Dataset, error) {
	var change *blob.ChangedError
	if !errors.As(why, &change) {
		return old, why
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now != old {
		return f.now, nil // another request has opened the new files
	}
	fresh, openErr := open(old.Split, f.memory, old.sources, nil)
	if openErr == nil {
		openErr = sameArrays(old.Sequence.Batch(), fresh.Sequence.Batch())
	}
	if openErr != nil {
		return old, fmt.Errorf("the token files changed, and what is there now cannot be served: %w (%w)", openErr, syscall.ESTALE)
	}
	fresh.Version = old.Version + 1
	if err := f.changed(fresh); err != nil {
		return old, fmt.Errorf("the token files changed, and the supervisor could not be told: %w (%w)", err, syscall.ESTALE)
	}
	old.release() // sequences that are not read any more hold its sources too
	f.now = fresh
	f.log.Warn("token files changed: the new ones are served", "split", fresh.Split.Split, "changes", fresh.Version, "file", change.Path,
		"how", change.How, "tokens", fresh.Len(), "fingerprint", fresh.fingerprint)
	return fresh, nil
}

// sameArrays returns an error unless the arrays of two batches have the same names, dtypes and shapes: files that are open keep their sizes.
func sameArrays(old, now array.Batch) error {
	described := func(b array.Batch) (all []string) {
		for _, a := range b.Arrays {
			all = append(all, fmt.Sprintf("%s %s %d", a.Name, a.DType, a.Shape))
		}
		return all
	}
	if was, are := described(old), described(now); !slices.Equal(was, are) {
		return fmt.Errorf("the arrays of a batch are %q now, and were %q; mount again to change that", are, was)
	}
	return nil
}
