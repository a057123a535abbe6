package dataset

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/fs"
)

// followed is a split that is served while its token files may change. If the split says so, it is opened again when they do.
//
// Locks: changed is called with mu held, and locks the publisher's.
type followed struct {
	mountpoint string
	memory     config.Memory
	log        *slog.Logger
	changed    func(*Dataset) error // called before anybody reads other tokens
	mu         sync.Mutex
	now        *Dataset // guarded by mu
}

// current returns the split with its files as they are now: it looks at those of batch k of d, as checkBatch does, and at all of them
// once a second. The error is syscall.ESTALE if they changed and the split does not follow that, or cannot be served from the new
// files; the dataset is the old one then.
func (f *followed) current(d *Dataset, k uint64) (*Dataset, error) {
	f.mu.Lock()
	old := f.now
	f.mu.Unlock()
	err := old.check() // without the lock: a file may give no answer
	if err == nil && d.version == old.version {
		err = d.checkBatch(k)
	}
	var change *cache.ChangedError
	if old.Split.OnChange != "follow" || !errors.As(err, &change) {
		return old, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now != old {
		return f.now, nil // somebody else has opened the new files
	}
	fresh, openErr := open(old.Split, f.memory, old.sources)
	if openErr == nil {
		openErr = sameArrays(old.Sequence.Batch(), fresh.Sequence.Batch())
	}
	if openErr != nil {
		return old, fmt.Errorf("the token files changed, and what is there now cannot be served: %w (%w)", openErr, syscall.ESTALE)
	}
	fresh.version = old.version + 1
	if err := f.changed(fresh); err != nil {
		return old, fmt.Errorf("the token files changed, and the supervisor could not be told: %w (%w)", err, syscall.ESTALE)
	}
	old.release() // sequences that nobody reads hold its sources too
	f.now = fresh
	f.log.Warn("token files changed: the new ones are served", "split", fresh.Split.Split, "changes", fresh.version, "file", change.Path,
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

// Shown returns the batches as a mount shows them, for a reader without one. Tokens that change are an error, whatever on_change says.
func (d *Dataset) Shown() *fs.Sequence { return (&followed{now: d}).sequence(d) }

// sequence returns d, the split or the split under the settings of a path, as a mount shows it.
func (f *followed) sequence(d *Dataset) *fs.Sequence {
	origins := sync.OnceValue(d.Origins)
	s := &fs.Sequence{
		Name:     d.Split.Name(),
		Batch:    d.Sequence.Batch(),
		Steps:    d.steps,
		Start:    d.Split.Start,
		Metadata: map[string]string{"sequence": d.label(), "fingerprint": d.fingerprint},
		Read:     d.read(filepath.Join(f.mountpoint, d.Split.Name())),
		Version:  d.version,
		Follows:  d.Split.OnChange == "follow",

		Ahead:      d.ahead(),
		ReadTokens: d.readTokens,
		TokensLen:  d.tokensLen(),

		Info:       d.info,
		InfoLen:    sync.OnceValue(func() int64 { return int64(len(d.info())) }),
		ReadOrigin: func(dst []byte, k uint64, off int64) error { return origins().Read(dst, k, off) },
		OriginLen:  func() int64 { return origins().Len() },
	}
	s.With = func(settings string) (*fs.Sequence, error) {
		other, err := d.With(settings)
		if err != nil {
			return nil, err
		}
		return f.sequence(other), nil
	}
	s.Now = func(k uint64) (*fs.Sequence, error) {
		now, err := f.current(d, k)
		if err != nil || now.version == d.version {
			return s, err
		}
		if d.Split.InPath() {
			if now, err = now.withSettings(d.Split); err != nil {
				return s, fmt.Errorf("the token files changed, and these settings do not suit the new ones: %w (%w)", err, syscall.ESTALE)
			}
		}
		return f.sequence(now), nil
	}
	return s
}
