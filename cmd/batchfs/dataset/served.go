package dataset

import (
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"batchfs/cache"
)

// A Served split, or such a split under the settings of a path, is what a mount shows. It belongs to one version of the tokens. Its
// methods may be called concurrently.
type Served struct {
	*Dataset
	by      *followed
	origins func() *Origins
	infoLen func() int64
	share   func() *cache.Share
	ahead   *lookahead // nil where nothing lies in a store
}

func newServed(d *Dataset, by *followed) *Served {
	s := &Served{
		Dataset: d,
		by:      by,
		origins: sync.OnceValue(d.Origins),
		infoLen: sync.OnceValue(func() int64 { return int64(len(d.Info())) }),
	}
	if d.isRemote() {
		s.share = sync.OnceValue(func() *cache.Share { return d.Share(filepath.Join(by.mountpoint, d.Split.Name())) })
		s.ahead = newLookahead(d)
	}
	return s
}

// Served returns the split as a mount shows it, for a reader without a mount. Token files that change are an error, whatever on_change says.
func (d *Dataset) Served() *Served { return newServed(d, &followed{now: d}) }

// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. Of objects, it has fetched what the
// batches need that follow.
func (s *Served) Read(dst []byte, k uint64, off int64) error {
	if s.ahead != nil {
		s.share().Read()
		s.ahead.reads(k + uint64((off+int64(len(dst)))/s.ahead.bytes))
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
	return newServed(d, s.by), nil
}

// Now looks at the token files that batch k is read from, or at those that array.NoBatch and array.AllBatches stand for, and at all of
// them once a second. It returns s, or what is served from other files if they changed and the split follows that; or s and an error,
// which is syscall.ESTALE if they changed.
func (s *Served) Now(k uint64) (*Served, error) {
	now, err := s.by.current(s.Dataset, k)
	if err != nil || now.Version == s.Version {
		return s, err
	}
	if s.Split.InPath() {
		if now, err = now.withSettings(s.Split); err != nil {
			return s, fmt.Errorf("the token files changed, and these settings do not suit the new ones: %w (%w)", err, syscall.ESTALE)
		}
	}
	return newServed(now, s.by), nil
}
