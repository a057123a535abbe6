package fs

import (
	"time"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// Version counts how often the tokens of a split have changed since the mount began.
type Version = state.Version

// A Batches is the sequence of batches of a split under some settings. It is immutable: when its
// token files change, another Batches replaces it. It is safe for concurrent use. A reader gets EIO
// for an error that wraps neither syscall.ESTALE nor syscall.ETIMEDOUT.
type Batches interface {
	Spec() *Spec

	// Read fills dst with the bytes of batches k, k+1, … back to back, starting at byte off of
	// batch k.
	Read(dst []byte, k uint64, off int64) error

	// ReadTokens fills dst with bytes of tokens.bin, starting at byte off, all within
	// Spec.TokensLen.
	ReadTokens(dst []byte, off int64) error

	// ReadOrigin fills dst with bytes of batch/<k>.json, starting at byte off, all within
	// OriginLen, which is the same for every k.
	ReadOrigin(dst []byte, k uint64, off int64) error
	OriginLen() int64

	Info() []byte   // info.json
	InfoLen() int64 // length of Info, computed once

	// RowsOf returns how many rows of batch k come from a source. source is an index into
	// Spec.SourceWeights.
	RowsOf(source int, k uint64) uint64

	// With derives the Batches under the settings of a path, such as "rank=3,world=8". Equal
	// settings have equal names. The error is syscall.ENOENT if a setting is unknown.
	With(settings string) (Batches, error)

	// Latest returns the Batches that replaces this one, or this one if its token files have not
	// changed. If no batch can be read, it returns this one and an error. It checks no file unless
	// one is known to be wrong.
	Latest() (Batches, error)

	// LatestFor is Latest, but also checks the files of batch k. If they have changed and are
	// followed, it waits for the new ones, or until cancel is closed.
	LatestFor(k uint64, cancel <-chan struct{}) (Batches, error)

	// LatestWhole is Latest, but returns an error unless every batch can be read.
	LatestWhole(cancel <-chan struct{}) (Batches, error)

	// Stalled returns how long a check of all token files has had no response, or 0.
	Stalled() time.Duration
}

// A Spec describes a Batches.
type Spec struct {
	// Path of the directory: a split, and the settings that differ from the split's own, as in
	// "train/rank=3,world=8".
	Name string

	Batch         array.Batch       // at most array.Most arrays
	Steps         uint64            // batches in batches.bin and batches.npy
	Start         uint64            // first number that next takes
	EpochBatches  uint64            // batches in an epoch; 0 without epochs
	SourceWeights []float64         // fraction of rows from each source; nil for a single source
	TokensLen     int64             // size of tokens.bin, in bytes
	Metadata      map[string]string // metadata in .safetensors files, besides the batch number
	Version       Version           // version of its tokens
	Follows       bool              // whether another Batches may replace it
}
