package fs

import (
	"fmt"
	"syscall"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// Version counts how often the tokens of a split have changed since the mount began.
type Version = state.Version

// Sequence is what the tree needs to know of a sequence of batches: its name, what a batch consists of, and the bytes of any
// batch. It belongs to one version of the tokens; when they change, another Sequence replaces it.
type Sequence struct {
	Name     string            // path of its directory: a split, and the settings that differ from the split's own: "train/rank=3,world=8"
	Batch    array.Batch       // the arrays of one batch, no more than array.Most
	Steps    uint64            // batches in batches.bin and batches.npy
	Start    uint64            // first number that next takes
	Metadata map[string]string // of .safetensors files, besides the number of the batch
	Version  Version           // of its tokens
	Follows  bool              // whether Now may return another Sequence

	// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. An error that
	// is syscall.ESTALE reaches the reader as that, any other as EIO. It is called concurrently, as are the functions below.
	Read func(dst []byte, k uint64, off int64) error

	// Ahead says that a reader will soon want batch k, and then those that follow it. It does not wait. It is nil where there is nothing to
	// fetch before it is read.
	Ahead func(k uint64)

	// ReadTokens fills dst with bytes of tokens.bin from byte off on, which lie within its TokensLen bytes.
	ReadTokens func(dst []byte, off int64) error
	TokensLen  int64

	Info    func() []byte // info.json
	InfoLen func() int64  // its length, which is computed once

	// ReadOrigin fills dst with bytes of batch/<k>.json from byte off on, which lie within its length, OriginLen. That is the
	// same for each k.
	ReadOrigin func(dst []byte, k uint64, off int64) error
	OriginLen  func() int64

	// Now looks at the token files: at those that batch k is read from, and at all of them once a second. It returns this Sequence,
	// or the one of the new tokens if the files changed and Follows is set; or this one and an error, as of Read.
	Now func(k uint64) (*Sequence, error)

	// With returns the sequence under the settings of a path, "rank=3,world=8". Equal settings have equal Names. The error
	// is syscall.ENOENT where a setting is unknown.
	With func(settings string) (*Sequence, error)

	unsuits bool // there is nothing to read: see unsuited
}

// What Now takes besides the number of a batch.
const (
	NoBatch    = MaxBatches + iota // no file more than those that it looks at once a second
	AllBatches                     // all files
)

// unsuited stands for the sequence under settings that an earlier worker served and that do not suit the tokens, or the
// program, any more. Reading it is an error until they suit again.
func (s *Sequence) unsuited(name, settings string, err error) *Sequence {
	err = fmt.Errorf("%w (%w)", err, syscall.ESTALE)
	const info = "{}\n"
	u := &Sequence{
		Name: name, Batch: s.Batch, Version: s.Version, Follows: s.Follows, unsuits: true,
		Info: func() []byte { return []byte(info) }, InfoLen: func() int64 { return int64(len(info)) },
		With: func(string) (*Sequence, error) { return nil, err },
	}
	u.Now = func(uint64) (*Sequence, error) {
		now, nowErr := s.Now(NoBatch)
		if nowErr != nil {
			return u, nowErr
		}
		if suited, err := now.With(settings); err == nil {
			return suited, nil
		}
		return u, err
	}
	return u
}
