package sampler

import (
	"fmt"

	"batchfs/cache/array"
)

// A Sequence is a list of MaxBatches batches: tokens under settings. It is safe for concurrent use.
//
// In its methods k is the number of a batch, below MaxBatches, and j a row of it, from 0 to B-1.
type Sequence struct {
	Settings
	sources []source
	mixture *mixture
	stored  array.DType // of a token in the files
	width   int         // its bytes
	parts   parts
}

// New makes the sequence of one or several sources of tokens, all of one dtype, mixed by Settings.Weights. The error says what
// has to be changed: a weight, a source with too few tokens for a row, an order that does not suit the sources, TorchState.
func New(sources []Tokens, s Settings) (*Sequence, error) {
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
	blank := &Sequence{Settings: s, mixture: m, stored: sources[0].DType()}
	for _, tokens := range sources {
		switch dtype := tokens.DType(); {
		case !convertible(dtype):
			return nil, fmt.Errorf("tokens of dtype %s cannot be served: they must be uint16 or uint32", dtype)
		case dtype != blank.stored:
			return nil, fmt.Errorf("tokens of dtypes %s and %s cannot be mixed: make them one", blank.stored, dtype)
		}
		blank.sources = append(blank.sources, newSource(tokens))
	}
	blank.width = blank.stored.Size()
	return blank.With(s)
}

// With is the sequence of the same sources and weights under other settings; s.Weights does not matter. Sequences of one block
// size share what depends on the number of files, so another one takes little memory. The errors are those of New.
func (q *Sequence) With(s Settings) (*Sequence, error) {
	s.Weights = q.Weights
	if s.DType == Native {
		s.DType = q.stored
	}
	n := &Sequence{Settings: s, sources: make([]source, len(q.sources)), mixture: q.mixture, stored: q.stored, width: q.width}
	for i, old := range q.sources {
		var err error
		if n.sources[i], err = old.with(s, i); err != nil {
			return nil, err
		}
	}
	n.parts = partsOf(s)
	return n, nil
}

// Arrays describes a batch. With layout xy its arrays are x and y of shape (B, T), both main; with layout tokens it has one,
// tokens, of shape (B, T+1).
func (q *Sequence) Arrays() array.Batch { return q.parts.batch }

// RowsPerEpoch is R, the number of disjoint windows of all sources together.
func (q *Sequence) RowsPerEpoch() (n int64) {
	for _, s := range q.sources {
		n += s.windows.disjoint
	}
	return n
}

// Share is the share of source i among all rows, as the fraction rows/of: of the global rows n*of to (n+1)*of-1, for any n, that
// many are the source's.
func (q *Sequence) Share(i int) (rows, of int) { return q.mixture.shares[i], q.mixture.period() }

// BatchesPerEpoch is the least number of batches that hold RowsPerEpoch rows, those of all ranks together.
func (q *Sequence) BatchesPerEpoch() int64 {
	global := int64(q.BatchSize) * int64(q.World)
	return (q.RowsPerEpoch() + global - 1) / global
}

// Row is the global number of row j of batch k.
func (q *Sequence) Row(k uint64, j int) uint64 {
	b := uint64(q.BatchSize)
	return k*b*uint64(q.World) + uint64(q.Rank)*b + uint64(j)
}

// BatchOf is the inverse of Row: the batch, the rank and the row of the batch that have a global number.
func (q *Sequence) BatchOf(row uint64) (k uint64, rank, j int) {
	b := uint64(q.BatchSize)
	global := b * uint64(q.World)
	return row / global, int(row % global / b), int(row % b)
}

// Start is where row j of batch k begins: a source, counted from 0, and a position among the tokens of that source.
func (q *Sequence) Start(k uint64, j int) (source int, start int64) {
	source, index := q.mixture.sourceOf(q.Row(k, j))
	return source, q.sources[source].order.start(index)
}

// Epoch is the epoch of row j of batch k, from 0 on. An epoch of a source is as many of its rows as it has disjoint windows.
func (q *Sequence) Epoch(k uint64, j int) uint64 {
	source, index := q.mixture.sourceOf(q.Row(k, j))
	return index / uint64(q.sources[source].windows.disjoint)
}
