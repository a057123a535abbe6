package main

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	"batchfs/cache"
	"batchfs/fs"
)

// A live split is opened anew when its files change, if that is to be followed.
type live struct {
	memory  memory
	log     *slog.Logger
	changed func(opened) error // told before anybody reads other data
	mu      sync.Mutex
	now     opened // guarded by mu
}

// look returns the split as its files are now. The error is ESTALE if they changed and that is not followed.
func (l *live) look() (opened, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.now.tokens.Check()
	s := l.now.split
	var changed *cache.ChangedError
	if s.OnChange != "follow" || !errors.As(err, &changed) {
		return l.now, err
	}
	fresh, openErr := s.open(l.memory, l.now.tokens)
	if openErr != nil {
		return l.now, fmt.Errorf("the token files changed, and what is there now cannot be served: %w (%w)", openErr, syscall.ESTALE)
	}
	fresh.changes = l.now.changes + 1
	if err := l.changed(fresh); err != nil {
		return l.now, fmt.Errorf("the token files changed, which a successor would have to know: %w (%w)", err, syscall.ESTALE)
	}
	l.now.tokens.Release() // directories that nobody reads hold them too
	l.now = fresh
	l.log.Warn("token files changed: the new ones are served", "split", s.Split, "changes", fresh.changes, "file", changed.Path, "how", changed.How,
		"tokens", fresh.tokens.Len(), "fingerprint", fresh.tokens.Fingerprint())
	return fresh, nil
}

// directory is the split, or it under the settings of a path, as the tree shows it.
func (l *live) directory(o opened) *fs.Sequence {
	s := &fs.Sequence{
		Name:       o.split.name(),
		DType:      string(o.sequence.DType),
		Shape:      o.sequence.Shape(),
		BatchBytes: o.sequence.BatchBytes(),
		Steps:      o.steps,
		Start:      o.split.Start,
		Metadata:   map[string]string{"sequence": o.label(), "fingerprint": o.tokens.Fingerprint()},
		Info:       o.info,
		Read:       o.sequence.Read,
		Changes:    o.changes,
		Follows:    o.split.OnChange == "follow",
	}
	if o.sequence.BatchSize <= maxProvenance {
		s.Provenance = func(k uint64) []byte { return indented(o.provenance(k)) }
	}
	s.With = func(settings string) (*fs.Sequence, error) {
		other, err := o.with(settings)
		if err != nil {
			return nil, err
		}
		return l.directory(other), nil
	}
	s.Now = func() (*fs.Sequence, error) {
		now, err := l.look()
		if err != nil || now.changes == o.changes {
			return s, err
		}
		if o.split.base != nil {
			if now, err = now.under(o.split); err != nil {
				return s, fmt.Errorf("the token files changed, and these settings do not suit the new ones: %w (%w)", err, syscall.ESTALE)
			}
		}
		return l.directory(now), nil
	}
	return s
}
