package sampler

import (
	"cmp"

	"batchfs/cache/array"
)

// MaxBatches is the number of batches in a sequence.
const MaxBatches = array.MaxBatches

// Limits of Settings, which keep row numbers and sizes of batches within 64 bits.
const (
	MaxRows      = 1 << 24 // limit on BatchSize * World
	MaxBlockSize = 1 << 31
	MaxHosts     = 1 << 16 // limit on World / LocalWorld: New measures every host's share
)

// MaxAxes limits the axes of an element, because NumPy before 2.0 supports arrays of at most 32
// axes, and a file of all batches adds three.
const MaxAxes = 29

// Settings determine a batch, together with the tokens and the batch number. They must be within
// the limits above, and fit each other: New checks only whether they fit the sources.
type Settings struct {
	Name      string      // name of the split, which is part of the seed
	BatchSize int         // B, in rows
	BlockSize int         // T, tokens in a row of x
	DType     array.DType // dtype of the main arrays in a batch; Native: as in the files
	Layout    Layout
	Order     Order
	Seed      uint64
	Rank      int // row j of batch k is global row k*B*World + Rank*B + j
	World     int

	// ShuffleBlock, in bytes, requires Order Shuffle and Rows Windows. If it is not 0, each host
	// reads its own share of every source, the same in all epochs, and successive rows come from a
	// few runs of this size.
	ShuffleBlock int64
	// LocalWorld is the number of ranks on each host, for ShuffleBlock. It must divide World. Host
	// h has the ranks h*LocalWorld to (h+1)*LocalWorld-1.
	LocalWorld int

	// Weights has a finite weight for each source, not all 0. It is nil for a single source, or
	// with Stages. The torch orders have one source, without Stages and MaxEpochs.
	Weights []float64
	// Stages replace Weights in a mixture that changes during a run. The first begins at row 0, and
	// each further one at a later row.
	Stages    []Stage
	MaxEpochs []float64 // limit on the epochs of each source, or 0; nil: no limits
	Only      int       // 1 + the only source that is drawn, without Stages; 0: all

	Arrays      []AlignedArray // aligned arrays, in the order of Source.Aligned
	Rows        RowContent     // contents of a row; "" is Windows
	TooLong     TooLong        // what happens to a document longer than a row; "" is Cut
	EOT         uint64         // last token of documents in a source without Documents, and padding
	HasEOT      bool           // whether EOT is known; otherwise it is 0
	BOS         *uint64        // first token of every segment of a document, and padding; nil: none
	Documents   bool           // whether a batch has the arrays cu_seqlens and positions
	MaskTargets bool           // whether y is IgnoreIndex in padding and where documents begin
	MaskArray   string         // with MaskTargets: array whose zeros mask targets, too; "": none
	IgnoreIndex int64          // below 0; 0: DefaultIgnoreIndex
	TorchState  []byte         // torch.get_rng_state() for the torch orders; nil: from Seed

	// DocumentNumbers says whether a batch has the array document_numbers.
	DocumentNumbers bool
}

// epochGroup returns the number of ranks that share an epoch, and the number of their host. Without
// ShuffleBlock, all ranks share one, and host is 0.
func (s *Settings) epochGroup() (ranks, host int) {
	if s.ShuffleBlock == 0 {
		return s.World, 0
	}
	return s.LocalWorld, s.Rank / s.LocalWorld
}

// Hosts returns the number of hosts that read shares of their own: 1 without ShuffleBlock.
func (s *Settings) Hosts() int {
	ranks, _ := s.epochGroup()
	return s.World / ranks
}

// mixed reports whether rows come from a mixture, which shows in their random numbers and arrays.
func (s *Settings) mixed() bool { return len(s.Weights) > 1 || len(s.Stages) > 0 }

// DefaultIgnoreIndex is the target that PyTorch's cross entropy ignores by default.
const DefaultIgnoreIndex = -100

// Native is the dtype of the token files. The Settings of a Sequence hold that dtype instead.
const Native array.DType = "native"

// Layout selects the main arrays of a batch.
type Layout string

const (
	XY     Layout = "xy"     // x and y of shape (B, T); y is x shifted by one
	Tokens Layout = "tokens" // tokens of shape (B, T+1)
	Rows   Layout = "rows"   // rows of shape (B, ...), each an element of any array
)

// A Stage is a part of a run with weights of its own. It begins at the global row FirstRow or, if
// FromTokens is not 0, at the row ceil(FromTokens/BlockSize).
type Stage struct {
	FirstRow   uint64
	FromTokens uint64    // not with layout Rows
	Weights    []float64 // one per source; 0: not drawn
}

// BeginsAt returns the global row at which the stage begins.
func (s *Stage) BeginsAt(blockSize int) uint64 {
	if s.FromTokens > 0 {
		return (s.FromTokens-1)/uint64(blockSize) + 1
	}
	return s.FirstRow
}

// An AlignedArray has an element for each element of a source's main array.
type AlignedArray struct {
	Name string
	At   At
}

// At says which token an element of an aligned array belongs to. Layout Rows ignores it.
type At string

const (
	AtX At = "x" // element t belongs to x[t]
	AtY At = "y" // element t belongs to y[t]
)

// RowContent selects what a row holds.
type RowContent string

const (
	Windows       RowContent = "windows"        // T+1 tokens from anywhere
	OfDocument    RowContent = "document"       // tokens of one document
	DocumentFirst RowContent = "document-first" // the first tokens of a document
	Packed        RowContent = "packed"         // whole documents, if they fit
)

// TooLong selects which tokens of a long document are in rows. A document is long if it has more
// tokens than a row, BlockSize+1. With Windows, no document is long.
type TooLong string

const (
	Cut      TooLong = "cut"      // all, in several rows
	Drop     TooLong = "drop"     // none
	Truncate TooLong = "truncate" // the first BlockSize+1
)

// LongDocuments returns what happens to long documents, given that DocumentFirst truncates them
// unless they are dropped.
func (s *Settings) LongDocuments() TooLong {
	if s.Rows == DocumentFirst && s.TooLong != Drop {
		return Truncate
	}
	return cmp.Or(s.TooLong, Cut)
}

// hasDocumentRows reports whether rows are made of documents. Such rows may need padding.
func (s *Settings) hasDocumentRows() bool { return s.Rows != "" && s.Rows != Windows }

// padding returns the token that fills up rows.
func (s *Settings) padding() uint64 {
	if s.BOS != nil {
		return *s.BOS
	}
	return s.EOT
}

// needsEnds reports whether a batch shows where documents end: in cu_seqlens and positions, in
// document_numbers, or in masked targets.
func (s *Settings) needsEnds() bool { return s.Documents || s.DocumentNumbers || s.MaskTargets }

// UsesDocuments reports whether it matters where documents end.
func (s *Settings) UsesDocuments() bool { return s.needsEnds() || s.hasDocumentRows() }

// NeedsIndex reports whether every source must have Documents.
func (s *Settings) NeedsIndex() bool {
	return s.hasDocumentRows() || s.DocumentNumbers || !s.HasEOT && (s.Documents || s.MaskTargets && s.MaskArray == "")
}

// MaxPacked limits the block size of packed rows, because packing takes memory for each length of a
// segment.
const MaxPacked = 1 << 20

// Order selects the starts of rows. Every order is a function of the row number, defined in
// docs/orders.md: random uses Philox4x64-10 and Lemire's method, shuffle a Feistel network with
// cycle walking, and the torch orders mt19937 as PyTorch does.
type Order string

const (
	Random     Order = "random"     // uniform over all starts
	Shuffle    Order = "shuffle"    // the disjoint windows, in a new order each epoch
	Sequential Order = "sequential" // the disjoint windows in order, the same each epoch
	Torch      Order = "torch"      // the starts of nanoGPT's get_batch in PyTorch 2.7 and later
	Torch26    Order = "torch-2.6"  // the same in PyTorch 2.6 and earlier
)
