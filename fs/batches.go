package fs

import (
	"batchfs/cache/array"
	"batchfs/fs/state"
)

// Version counts how often the tokens of a split have changed since the mount began.
type Version = state.Version

// A Batches is the sequence of batches of a split under some settings. It is immutable: when its
// token files change, another Batches replaces it. It is safe for concurrent use. A reader gets
// the error syscall.ESTALE as it is, and any other error as EIO.
type Batches interface {
	Spec() *Spec
	batchReader
	elementReader
	describer
	rowCounter
	refresher
	deriver
}

// A Spec is what a Batches is called and consists of.
type Spec struct {
	Name          string            // path of its directory: a split, and the settings that differ from the split's own: "train/rank=3,world=8"
	Batch         array.Batch       // the arrays of one batch, no more than array.Most
	Steps         uint64            // batches in batches.bin and batches.npy
	Start         uint64            // first number that next takes
	EpochBatches  uint64            // in an epoch; 0: there are none
	SourceWeights []float64         // of a mixture, the part of the rows that each source has; or nil
	TokensLen     int64             // of tokens.bin, in bytes
	Metadata      map[string]string // of .safetensors files, besides the number of the batch
	Version       Version           // of its tokens
	Follows       bool              // whether another Batches may replace it
}
