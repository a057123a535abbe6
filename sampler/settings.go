package sampler

import "batchfs/cache/array"

// MaxBatches bounds the numbers of batches: k is below it.
const MaxBatches = array.MaxBatches

// Bounds of settings, so that the number of a row fits 64 bits for every batch, and the size of a batch does.
const (
	MaxRows      = 1 << 24 // of a batch, times World
	MaxBlockSize = 1 << 31
	MaxHosts     = 1 << 16 // World / LocalWorld, with ShuffleBlock: the share of each is measured
)

// MaxAxes bounds the axes of an element: NumPy before 2.0 knows arrays of up to 32 axes, and all batches of a file have three more.
const MaxAxes = 29

// Settings are what a batch depends on besides its tokens and its number. They must be within the bounds.
type Settings struct {
	Name      string      // its name: two splits of one seed draw different rows
	BatchSize int         // B, rows of a batch
	BlockSize int         // T, tokens of a row of x
	DType     array.DType // of the tokens, or integers, in a batch; Native: as in the files
	Layout    Layout
	Order     Order
	Seed      uint64
	Rank      int // this reader's share: rows k*B*World + Rank*B + j
	World     int // the number of ranks

	// With order Shuffle and rows of Windows: rows that follow each other are drawn from a few blocks of so many bytes, and each host from
	// a share of every source that is the same in all epochs. 0: from anywhere.
	ShuffleBlock int64
	LocalWorld   int // then the ranks of a host, which divide World: ranks h*LocalWorld, ..., (h+1)*LocalWorld-1 are on host h

	Weights     []float64      // of the sources, each above 0; nil for one source
	Arrays      []AlignedArray // what each source has beside its main array, in the order of Source.Aligned
	Rows        Rows           // what a row holds; "" is Windows
	Ends        Ends           // how the end of a document is known
	EOT         uint64         // the token that ends a document, with EndsByToken; else what fills a row up behind its tokens
	Documents   bool           // a batch says where documents end, in the arrays cu_seqlens and positions
	MaskTargets bool           // an element of y that is not of its document is -100
	TorchState  []byte         // what torch.get_rng_state() gives, for the torch orders to start from; nil: from Seed
}

// together is how many ranks go through an epoch together, all of them or a host's, and the number of this rank's host.
func (s *Settings) together() (ranks, host int) {
	if s.ShuffleBlock == 0 {
		return s.World, 0
	}
	return s.LocalWorld, s.Rank / s.LocalWorld
}

// Native is the setting for the dtype that the token files have. The settings of a Sequence have that dtype instead.
const Native array.DType = "native"

// Layout says which arrays a batch has.
type Layout string

const (
	XY        Layout = "xy"     // x of shape (B, T), then y of shape (B, T): x shifted by one
	WholeRows Layout = "tokens" // tokens of shape (B, T+1)
	Elements  Layout = "rows"   // rows of shape (B, ...): elements of any array, whatever the block size
)

// An AlignedArray is an array that each source has beside its main one.
type AlignedArray struct {
	Name string
	At   At
}

// At says whose positions an array beside the tokens has. With layout rows there is one position only.
type At string

const (
	AtX At = "x" // element t of a row belongs to x[t]
	AtY At = "y" // to y[t]
)

// Rows says what a row holds.
type Rows string

const (
	Windows       Rows = "windows"        // tokens from anywhere
	OfDocument    Rows = "document"       // tokens of one document; a longer one has several rows
	DocumentFirst Rows = "document-first" // the first tokens of a document
	Packed        Rows = "packed"         // whole documents, as many as fit; a longer one is cut
)

// ofSegments says that some rows may not be full.
func (s *Settings) ofSegments() bool { return s.Rows != "" && s.Rows != Windows }

// needsEnds reports whether batches depend on where documents end.
func (s *Settings) needsEnds() bool { return s.Documents || s.MaskTargets }

// MaxPacked bounds the block size of packed rows, because to pack takes memory for each length.
const MaxPacked = 1 << 20

// Ends says how the end of a document is known.
type Ends string

const (
	EndsUnknown Ends = ""
	EndsByToken Ends = "token" // EOT is the last of each document
	EndsByIndex Ends = "index" // Source.Documents knows
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
