// Package sampler computes batches: batch k of a [Sequence] is a pure function of its tokens, its settings and k. It opens no
// file and reads no clock.
//
// A batch has B rows, numbered across all batches and ranks. A mixture assigns each row to one of the sources of tokens, an order says at which token
// of that source the row begins, and the row's T+1 tokens are laid out as the arrays of the batch, for example x and y.
package sampler

import (
	"fmt"
	"math"
	"slices"

	"batchfs/cache/array"
)

// A Sequence is a list of MaxBatches batches: tokens under settings. It is safe for concurrent use.
//
// In its methods k is the number of a batch, below MaxBatches, and j the number of a row in the batch, from 0 to B-1.
type Sequence struct {
	Settings
	sources []source
	mixture *mixture
	layout  batchLayout
	batches int64 // BatchesPerEpoch
}

// New makes the sequence of one or several sources, mixed by Settings.Weights. The error names a weight, a source with too few tokens for a
// row, arrays that differ, settings that do not suit the sources or each other, or TorchState.
func New(sources []Source, s Settings) (*Sequence, error) {
	if s.Weights == nil {
		s.Weights = []float64{1}
	}
	if len(s.Weights) != len(sources) {
		return nil, fmt.Errorf("%d weights for %d sources", len(s.Weights), len(sources))
	}
	m, err := newMixture(s.Weights)
	if err != nil {
		return nil, err
	}
	blank := &Sequence{Settings: s, mixture: m}
	for _, from := range sources {
		source, err := newSource(from, s)
		if err != nil {
			return nil, err
		}
		if err := alike(sources[0], from, s); err != nil {
			return nil, err
		}
		blank.sources = append(blank.sources, source)
	}
	return blank.With(s)
}

func alike(a, b Source, s Settings) error {
	if len(a.Aligned) != len(s.Arrays) || len(b.Aligned) != len(s.Arrays) {
		return fmt.Errorf("sources with %d and %d arrays beside the tokens where there should be %d", len(a.Aligned), len(b.Aligned), len(s.Arrays))
	}
	for i, x := range a.arrays() {
		y := b.arrays()[i]
		if x.DType() != y.DType() || !slices.Equal(x.Axes(), y.Axes()) {
			return fmt.Errorf("%s holds %s and %s %s, which cannot be mixed: make them one",
				x.Extents()[0].Name, described(x), y.Extents()[0].Name, described(y))
		}
	}
	return nil
}

func described(a Array) string {
	if len(a.Axes()) == 0 {
		return string(a.DType())
	}
	return fmt.Sprintf("%s of shape %d", a.DType(), a.Axes())
}

// With is the sequence of the same sources under other settings; it ignores s.Weights and s.Arrays. Its memory does not depend on the number
// of files if there is a sequence of the same block size. With fails as New does.
func (q *Sequence) With(s Settings) (n *Sequence, err error) {
	s.Weights, s.Arrays = q.Weights, q.Settings.Arrays
	if s.DType == Native {
		s.DType = q.sources[0].arrays[0].DType()
	}
	if err := s.suits(q.sources); err != nil {
		return nil, err
	}
	n = &Sequence{Settings: s, mixture: q.mixture}
	for i, old := range q.sources {
		source, err := old.with(s, i)
		if err != nil {
			return nil, err
		}
		n.sources = append(n.sources, source)
	}
	if n.batches, err = n.countBatches(); err == nil {
		n.layout, err = newBatchLayout(&s, q.sources[0].arrays, len(q.sources))
	}
	return n, err
}

// countBatches is BatchesPerEpoch. The error names a host without a window.
func (q *Sequence) countBatches() (least int64, err error) {
	ranks, _ := q.together()
	hosts, global := q.World/ranks, int64(q.BatchSize)*int64(ranks)
	least = math.MaxInt64
	for host := range hosts {
		rows := int64(0)
		for i := range q.sources {
			of, err := q.sources[i].hostShareOf(q.Settings, host)
			if err != nil {
				return 0, err
			}
			rows += of.n
		}
		least = min(least, (rows+global-1)/global)
	}
	return least, nil
}

func (s *Settings) suits(sources []source) error {
	main := sources[0].arrays[0]
	tokens := s.Layout != Elements
	switch {
	case tokens && (len(main.Axes()) > 0 || !main.DType().IsInteger()):
		return fmt.Errorf("%s holds %s, not tokens; say layout = \"rows\"", main.Extents()[0].Name, described(main))
	case s.MaskTargets && s.Layout != XY:
		return fmt.Errorf("mask_targets is for y, which layout %s does not have; say layout = \"xy\"", s.Layout)
	case s.MaskTargets && !slices.Contains([]array.DType{array.Int16, array.Int32, array.Int64}, s.DType):
		return fmt.Errorf("mask_targets sets targets to %d, which dtype %s cannot hold; say dtype = \"int64\"", maskedTarget, s.DType)
	case !tokens && (s.Documents || s.ofSegments()):
		return fmt.Errorf("layout rows has no documents; leave out rows = %q and documents", s.Rows)
	case s.needsEnds() && s.Ends == EndsByToken && !holds(main.DType(), s.EOT):
		return fmt.Errorf("%s: its tokens are %s, which cannot be %d; is eot right?", main.Extents()[0].Name, main.DType(), s.EOT)
	case s.Rows == Packed && s.BlockSize > MaxPacked:
		return fmt.Errorf("packed rows need a block_size of %d at most (got %d)", MaxPacked, s.BlockSize)
	case s.ofSegments() && s.DType.IsInteger() && !holds(s.DType, s.EOT):
		return fmt.Errorf("rows are filled up with eot, %d, which dtype %s cannot hold; set dtype to one that can, e.g. int64", s.EOT, s.DType)
	case s.ofSegments() && s.Ends != EndsByIndex:
		return fmt.Errorf("rows = %q needs an index of where documents end", s.Rows)
	case (s.Documents || s.ofSegments()) && s.BlockSize > math.MaxInt32:
		return fmt.Errorf("documents need a block_size of %d at most (got %d)", math.MaxInt32, s.BlockSize)
	}
	for _, source := range sources {
		if s.Ends == EndsByIndex && source.documents == nil {
			return fmt.Errorf("%s: nothing says where its documents end", source.arrays[0].Extents()[0].Name)
		}
	}
	return nil
}

// Batch describes a batch. Its main arrays are the layout's. The others lie beside the tokens; cu_seqlens of shape (B, T+1) and
// positions of shape (B, T); lengths of shape (B,); and, of a mixture, source of shape (B,).
func (q *Sequence) Batch() array.Batch { return q.layout.batch }

// Stored is the dtype of the main array in the files.
func (q *Sequence) Stored() array.DType { return q.layout.columns[0].stored }

// RowsPerEpoch is R, the number of disjoint windows of all sources together; with shuffle_block, of the host's share.
func (q *Sequence) RowsPerEpoch() (n int64) {
	for _, s := range q.sources {
		n += s.hostShare.n
	}
	return n
}

// WindowsOf is how many disjoint windows source i has, in the shares of all hosts together.
func (q *Sequence) WindowsOf(i int) int64 { return q.sources[i].starts.disjoint }

// Weight is the weight of source i: of the global rows n*of to (n+1)*of-1, for any n, so many rows are the source's.
func (q *Sequence) Weight(i int) (rows, of int) {
	return len(q.mixture.rows[i]), len(q.mixture.pattern)
}

// Needed are the elements of source i that an epoch needs, of all ranks that go through it together: those from a position to before another.
func (q *Sequence) Needed(i int) (from, to int64) {
	s := &q.sources[i]
	if q.ShuffleBlock == 0 {
		return 0, s.arrays[0].Len()
	}
	return s.hostShare.at(0), s.hostShare.at(s.hostShare.n-1) + s.starts.len
}

// BatchesPerEpoch is the least number of batches in which all ranks together have RowsPerEpoch rows, or those of the host with the smallest
// share. It is the same for all ranks.
func (q *Sequence) BatchesPerEpoch() int64 { return q.batches }

// Row is the global number of row j of batch k.
func (q *Sequence) Row(k uint64, j int) uint64 {
	return (k*uint64(q.World)+uint64(q.Rank))*uint64(q.BatchSize) + uint64(j)
}

// BatchOf is the inverse of Row.
func (q *Sequence) BatchOf(row uint64) (k uint64, rank, j int) {
	b := uint64(q.BatchSize)
	global := b * uint64(q.World)
	return row / global, int(row % global / b), int(row % b)
}

// first is the number of batch k's first row among those of the ranks that go through an epoch together.
func (q *Sequence) first(k uint64) uint64 {
	ranks, host := q.together()
	return (k*uint64(ranks) + uint64(q.Rank-host*ranks)) * uint64(q.BatchSize)
}

// RowsOf is how many rows of batch k are of a source.
func (q *Sequence) RowsOf(source int, k uint64) uint64 {
	return q.mixture.before(source, q.first(k)+uint64(q.BatchSize)) - q.mixture.before(source, q.first(k))
}

// Start is where row j of batch k begins: a source, and a position in it. For rows made of documents start is the number of the row in the
// source instead.
func (q *Sequence) Start(k uint64, j int) (source int, start int64) {
	source, index := q.mixture.sourceOf(q.first(k) + uint64(j))
	return source, q.sources[source].order.start(index)
}

// Segments are what row j of batch k is made of, in their order there. A row of Windows is one segment; its Document is that of its first
// token. The error is one of reading where documents end.
func (q *Sequence) Segments(k uint64, j int) (source int, list []Segment, err error) {
	source, start := q.Start(k, j)
	from := q.sources[source]
	list, err = from.starts.segments(nil, start)
	if err == nil && list[0].Document < 0 && q.Ends == EndsByIndex {
		list[0].Document, err = from.documents.Of(start)
	}
	return source, list, err
}

// Groups are, of each source, how many rows its documents have up to each of their groups; nil for rows of Windows. Do not change them.
func (q *Sequence) Groups() (all [][]int64) {
	for _, s := range q.sources {
		all = append(all, s.starts.groups())
	}
	return all
}

// Epoch is the epoch of row j of batch k: of its source, or of the host's share of its source.
func (q *Sequence) Epoch(k uint64, j int) uint64 {
	source, index := q.mixture.sourceOf(q.first(k) + uint64(j))
	return index / uint64(q.sources[source].hostShare.n)
}
