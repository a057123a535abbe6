package fs

import (
	"batchfs/cache/array"
	"batchfs/fs/state"
)

// Version counts how often the tokens of a split have changed since the mount began.
type Version = state.Version

// A Sequence is a sequence of batches that a mount shows. It does not change: when its token files do, another Sequence replaces it.
// Its methods are called concurrently. An error that is syscall.ESTALE reaches the reader as that, any other as EIO.
type Sequence interface {
	Spec() *Spec

	// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on.
	Read(dst []byte, k uint64, off int64) error

	// ReadTokens fills dst with bytes of tokens.bin from byte off on, which lie within Spec.TokensLen.
	ReadTokens(dst []byte, off int64) error

	// ReadOrigin fills dst with bytes of batch/<k>.json from byte off on, which lie within its length, OriginLen. The length is the
	// same for each k.
	ReadOrigin(dst []byte, k uint64, off int64) error
	OriginLen() int64

	Info() []byte   // info.json
	InfoLen() int64 // its length, which is computed once

	RowsOf(source int, k uint64) uint64 // how many rows of batch k are of a source, where Spec has Sources

	// Now looks at the token files: at those that batch k is read from, and at all of them once a second. With array.NoBatch it looks
	// at no file more, with array.AllBatches at all. It returns this Sequence, or the one of the new tokens if the files changed and
	// Spec.Follows is set; or this one and an error.
	Now(k uint64) (Sequence, error)

	// With returns the sequence under the settings of a path, "rank=3,world=8". Equal settings have equal names. The error
	// is syscall.ENOENT where a setting is unknown.
	With(settings string) (Sequence, error)
}

// A Spec is what a Sequence is called and consists of.
type Spec struct {
	Name         string            // path of its directory: a split, and the settings that differ from the split's own: "train/rank=3,world=8"
	Batch        array.Batch       // the arrays of one batch, no more than array.Most
	Steps        uint64            // batches in batches.bin and batches.npy
	Start        uint64            // first number that next takes
	EpochBatches uint64            // in an epoch; 0: there are none
	Sources      []float64         // of a mixture, the part of the rows that each source has; or nil
	TokensLen    int64             // of tokens.bin, in bytes
	Metadata     map[string]string // of .safetensors files, besides the number of the batch
	Version      Version           // of its tokens
	Follows      bool              // Now may return another Sequence
}
