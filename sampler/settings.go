package sampler

import "batchfs/cache/array"

// MaxBatches bounds the numbers of batches: k is below it.
const MaxBatches = 1 << 40

// Bounds of settings, so that the number of a row fits 64 bits for every batch, and the size of a batch does.
const (
	MaxRows      = 1 << 24 // of a batch, times World
	MaxBlockSize = 1 << 31
)

// Settings are what a batch depends on besides its tokens and its number. They must be within the bounds.
type Settings struct {
	Split     string      // its name: two splits of one seed draw different rows
	BatchSize int         // B, rows of a batch
	BlockSize int         // T, tokens of a row of x
	DType     array.DType // of the tokens in a batch; Native: as in the files
	Layout    Layout
	Order     Order
	Seed      uint64
	Rank      int // this reader's share: rows k*B*World + Rank*B + j
	World     int // the number of ranks

	Weights    []float64 // of the sources, each above 0; nil for one source
	TorchState []byte    // what torch.get_rng_state() gives, for the torch orders to start from; nil: from Seed
}

// Native is the setting for the dtype that the token files have. The settings of a Sequence have that dtype instead.
const Native array.DType = "native"

// Layout says which arrays a batch has.
type Layout string

const (
	XY        Layout = "xy"     // x of shape (B, T), then y of shape (B, T): x shifted by one
	WholeRows Layout = "tokens" // tokens of shape (B, T+1)
)

// Order decides at which token a row begins.
type Order string

const (
	Random     Order = "random"     // uniform over all starts
	Shuffle    Order = "shuffle"    // the disjoint windows, in another order every epoch
	Sequential Order = "sequential" // the disjoint windows, one after the other, again and again
	Torch      Order = "torch"      // the starts that nanoGPT's get_batch draws, with PyTorch from 2.7 on
	Torch26    Order = "torch-2.6"  // and up to 2.6
)
