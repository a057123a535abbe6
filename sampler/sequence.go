// Package sampler computes batches. Batch k of a [Sequence] is a pure function of its tokens, its
// [Settings] and k. The package opens no file and reads no clock.
//
// Rows are numbered across all batches and ranks, and everything about a row is a function of its
// number: a mixture assigns it to a [Source], an [Order] picks its start in that source, and its
// T+1 tokens are laid out as arrays such as x and y. There is no state to save or restore.
//
// Users' runs depend on every byte of a batch, so none may change within a major version. A better
// generator gets the name of a new order.
package sampler

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"batchfs/cache/array"
)

// A Sequence is the list of batches that sources yield under settings. It is safe for concurrent
// use.
//
// Methods take the number k of a batch, below Batches, and the number j of a row in it, below B.
type Sequence struct {
	Settings
	sources         []boundSource
	mixer           *mixer
	schedule        *Schedule
	layout          batchLayout
	batches         uint64
	batchesPerEpoch int64
}

// New returns the sequence of sources mixed by Settings.Weights or Stages. It fails if a source is
// shorter than a row, arrays differ in length or dtype, TorchState is invalid, or settings do not
// fit the sources.
func New(sources []Source, s Settings) (*Sequence, error) { return NewWithSchedule(sources, s, nil) }

// NewWithSchedule is like New, but does not compute the schedule, which takes milliseconds for each
// stage of many sources: schedule is the result of Sequence.Schedule for the same sources and
// settings, or nil.
func NewWithSchedule(sources []Source, s Settings, schedule *Schedule) (*Sequence, error) {
	if len(sources) == 0 {
		return nil, errors.New("a mixture needs at least one source")
	}
	if s.Stages != nil {
		s.Weights = nil
	} else if s.Weights == nil {
		s.Weights = []float64{1}
	}
	blank := &Sequence{Settings: s, mixer: &mixer{}}
	for _, from := range sources {
		source, err := newBoundSource(from, s)
		if err != nil {
			return nil, err
		}
		if err := checkSameArrays(sources[0], from, s); err != nil {
			return nil, err
		}
		blank.sources = append(blank.sources, source)
		blank.mixer.tables = source.cache.source.Tables
	}
	return blank.with(s, schedule)
}

func checkSameArrays(a, b Source, s Settings) error {
	if len(a.Aligned) != len(s.Arrays) || len(b.Aligned) != len(s.Arrays) {
		return fmt.Errorf("sources have %d and %d aligned arrays, but the settings name %d", len(a.Aligned), len(b.Aligned), len(s.Arrays))
	}
	for i, x := range a.arrays() {
		y := b.arrays()[i]
		if x.DType() != y.DType() || !slices.Equal(x.Axes(), y.Axes()) {
			return fmt.Errorf("%s holds %s and %s %s, which cannot be mixed: convert one to the other's dtype and shape",
				x.Extents()[0].Name, describe(x), y.Extents()[0].Name, describe(y))
		}
	}
	return nil
}

func describe(a SourceArray) string {
	if len(a.Axes()) == 0 {
		return string(a.DType())
	}
	return fmt.Sprintf("%s of shape %d", a.DType(), a.Axes())
}

// With returns the sequence of the same sources under other settings, except Weights, Stages,
// MaxEpochs and Arrays, which it ignores. It fails like New. Sequences of the same rows and block
// size share the memory that depends on the number of files and stages.
func (q *Sequence) With(s Settings) (*Sequence, error) { return q.with(s, nil) }

// with is like With. schedule is that of the new sequence, or nil if it is not known.
func (q *Sequence) with(s Settings, schedule *Schedule) (n *Sequence, err error) {
	s.Weights, s.Stages, s.MaxEpochs = q.Weights, q.Stages, q.MaxEpochs
	s.Arrays, s.IgnoreIndex = q.Arrays, cmp.Or(s.IgnoreIndex, DefaultIgnoreIndex)
	if s.DType == Native {
		s.DType = q.sources[0].arrays[0].DType()
	}
	if err := s.check(q.sources); err != nil {
		return nil, err
	}
	n = &Sequence{Settings: s, mixer: q.mixer}
	for i, old := range q.sources {
		source, err := old.bind(s, i)
		if err != nil {
			return nil, err
		}
		n.sources = append(n.sources, source)
	}
	if n.schedule, err = n.findSchedule(schedule); err != nil {
		return nil, err
	}
	if err = n.countBatches(); err == nil {
		n.layout, err = newBatchLayout(&s, q.sources[0].arrays)
	}
	return n, err
}

// countBatches computes Batches and BatchesPerEpoch. It fails if a host has no window, or
// MaxEpochs leaves no batch.
func (q *Sequence) countBatches() error {
	ranks, _ := q.epochGroup()
	global := int64(q.BatchSize) * int64(ranks)
	q.batches, q.batchesPerEpoch = MaxBatches, math.MaxInt64
	if end := q.schedule.End; end < math.MaxUint64 {
		q.batches = min(MaxBatches, end/uint64(global))
		if q.batches == 0 {
			return fmt.Errorf("max_epochs leaves %d rows, less than a batch of all ranks, %d; raise max_epochs, or reduce batch_size", end, global)
		}
	}
	for host := range q.Hosts() {
		rows := int64(0)
		for i := range q.sources {
			share, err := q.sources[i].hostShareOf(q.Settings, host)
			if err != nil {
				return err
			}
			if q.schedule.draws(i) {
				rows += share.windows
			}
		}
		q.batchesPerEpoch = min(q.batchesPerEpoch, (rows+global-1)/global, int64(q.batches))
	}
	return nil
}

func (s *Settings) check(sources []boundSource) error {
	main := sources[0].arrays[0]
	switch {
	case s.Layout != Rows && len(main.Axes()) > 0 && main.DType().IsInteger():
		return fmt.Errorf("%s holds %s, not tokens; set layout = \"rows\", or, if these are tokens, make a list of them: numpy.save(FILE, a.reshape(-1))",
			main.Extents()[0].Name, describe(main))
	case s.Layout != Rows && (len(main.Axes()) > 0 || !main.DType().IsInteger()):
		return fmt.Errorf("%s holds %s, not tokens; set layout = \"rows\", or, if these are tokens, all of them whole numbers, rewrite "+
			"them: numpy.save(FILE, a.reshape(-1).astype(\"uint32\"))",
			main.Extents()[0].Name, describe(main))
	case s.MaskTargets && s.DType.IsInteger() && !canHold(s.DType, s.IgnoreIndex):
		return fmt.Errorf("mask_targets sets targets to %d, which dtype %s cannot hold; set dtype = \"int64\"", s.IgnoreIndex, s.DType)
	case s.BOS != nil && !canHold(main.DType(), int64(*s.BOS)):
		return fmt.Errorf("%s: its tokens are %s, which cannot be %d; check bos", main.Extents()[0].Name, main.DType(), *s.BOS)
	case s.hasDocumentRows() && s.DType.IsInteger() && !canHold(s.DType, int64(s.padding())):
		return fmt.Errorf("rows are filled up with bos or eot, %d, which dtype %s cannot hold; set dtype to one that can, e.g. int64", s.padding(), s.DType)
	case s.Only > len(sources) || s.Only < 0:
		return fmt.Errorf("source %d: there are %d sources", s.Only-1, len(sources))
	}
	if i := s.maskArrayIndex(); s.MaskArray != "" {
		switch {
		case i < 0:
			return fmt.Errorf("mask_targets = %q: no array has this name; add it to arrays", s.MaskArray)
		case s.Arrays[i].At != AtY:
			return fmt.Errorf("mask_targets = %q: the array is aligned with x; set at = \"y\"", s.MaskArray)
		}
		if mask := sources[0].arrays[i+1]; len(mask.Axes()) > 0 || !mask.DType().IsInteger() && mask.DType() != array.Bool {
			return fmt.Errorf("mask_targets = %q: the array holds %s, but must hold one integer or bool for each target", s.MaskArray, describe(mask))
		}
	}
	for _, source := range sources {
		if main := source.arrays[0]; source.documents == nil && s.HasEOT && s.needsEnds() && !canHold(main.DType(), int64(s.EOT)) {
			return fmt.Errorf("%s: its tokens are %s, which cannot be %d; check eot", main.Extents()[0].Name, main.DType(), s.EOT)
		}
	}
	return nil
}

// EndsByToken reports whether the documents of a source end with EOT, because no index says where.
func (q *Sequence) EndsByToken(source int) bool {
	return q.HasEOT && q.needsEnds() && q.sources[source].documents == nil
}

// maskArrayIndex returns the index of MaskArray in Arrays, or -1.
func (s *Settings) maskArrayIndex() int {
	return slices.IndexFunc(s.Arrays, func(a AlignedArray) bool { return a.Name == s.MaskArray })
}

// Batch describes a batch. Its main arrays are those of the layout. Others follow, as the settings
// require: the aligned arrays, cu_seqlens of shape (B, T+1), positions and document_numbers of
// shape (B, T), lengths of shape (B,) and, in a mixture, source of shape (B,).
func (q *Sequence) Batch() array.Batch { return q.layout.batch }

// StoredDType returns the dtype of the main array in the files.
func (q *Sequence) StoredDType() array.DType { return q.layout.columns[0].dtype }

// RowsPerEpoch returns R, the number of disjoint windows, or rows of documents, of all sources
// that are drawn or, with ShuffleBlock, of this host's share of them.
func (q *Sequence) RowsPerEpoch() (n int64) {
	for i, s := range q.sources {
		if q.schedule.draws(i) {
			n += s.share.windows
		}
	}
	return n
}

// RowsPerEpochOf returns what RowsPerEpoch returns if only source i is drawn.
func (q *Sequence) RowsPerEpochOf(i int) int64 { return q.sources[i].share.windows }

// WindowsOf returns the number of disjoint windows of source i, in the shares of all hosts.
func (q *Sequence) WindowsOf(i int) int64 { return q.sources[i].starts.disjointCount }

// StartsOf returns the number of elements of source i at which a window may begin or, if rows are
// made of documents, the number of its rows.
func (q *Sequence) StartsOf(i int) int64 { return q.sources[i].starts.count }

// TooShort returns the number of files that are too short for a row.
func (q *Sequence) TooShort() (n int) {
	for _, s := range q.sources {
		n += s.starts.tooShort
	}
	return n
}

// NeededElements returns the elements [from, to) of source i that an epoch reads, on all ranks or,
// with ShuffleBlock, on this rank's host.
func (q *Sequence) NeededElements(i int) (from, to int64) {
	s := &q.sources[i]
	if !q.schedule.draws(i) {
		return 0, 0
	}
	if q.ShuffleBlock == 0 {
		return 0, s.arrays[0].Len()
	}
	return s.share.windowStart(0), s.share.windowStart(s.share.windows-1) + s.starts.spec.len
}

// BatchesPerEpoch returns the number of batches in which all ranks together, or with ShuffleBlock
// those of the host with the smallest share, read their RowsPerEpoch. It is the same on all ranks.
func (q *Sequence) BatchesPerEpoch() int64 { return q.batchesPerEpoch }

// Row returns the global number of row j of batch k.
func (q *Sequence) Row(k uint64, j int) uint64 {
	return (k*uint64(q.World)+uint64(q.Rank))*uint64(q.BatchSize) + uint64(j)
}

// BatchOf is the inverse of Row.
func (q *Sequence) BatchOf(row uint64) (k uint64, rank, j int) {
	b := uint64(q.BatchSize)
	global := b * uint64(q.World)
	return row / global, int(row % global / b), int(row % b)
}

// RowsOf returns how many rows of batch k come from a source.
func (q *Sequence) RowsOf(source int, k uint64) uint64 {
	first, end := q.ScheduleRow(k, 0), q.ScheduleRow(k, q.BatchSize)
	n := uint64(0)
	if end < first { // 2^64 does not fit into a uint64
		end--
		if last, _ := q.schedule.sourceOf(end); last == source {
			n++
		}
	}
	return n + q.schedule.before(source, end) - q.schedule.before(source, first)
}

// Start returns the source of row j of batch k, and which of the source's starts the row has: see
// [Sequence.StartsOf]. A start is the position of the row's first element or, if rows are made of
// documents, the number of a row, whose positions [Sequence.Segments] returns.
func (q *Sequence) Start(k uint64, j int) (source int, start int64) {
	source, index := q.schedule.sourceOf(q.ScheduleRow(k, j))
	return source, q.sources[source].order.start(index)
}

// Segments returns the segments of row j of batch k, in order. A row of Windows is one segment,
// with the Document of its first token. Segments fails if it cannot read where documents end.
func (q *Sequence) Segments(k uint64, j int) (source int, list []Segment, err error) {
	source, start := q.Start(k, j)
	from := q.sources[source]
	list, err = from.starts.rows.segments(nil, start)
	if err == nil && list[0].Document < 0 && from.documents != nil {
		list[0].Document, err = from.documents.NumberAt(start)
	}
	return source, list, err
}

// A SourceWindow is a window of one array of a source. It counts numbers, not elements.
type SourceWindow struct {
	Source int
	Column int // number of the array in the source; 0: main
	array.Window
}

// segmentLists recycles lists between calls of Windows.
var segmentLists = sync.Pool{New: func() any { return new([]Segment) }}

// Windows returns the windows that batch k needs, row after row. If it cannot read where documents
// end, it returns an error after the windows of earlier rows. Batch Batches() and later ones have
// no windows.
func (q *Sequence) Windows(k uint64) iter.Seq2[SourceWindow, error] {
	return func(yield func(SourceWindow, error) bool) {
		if k >= q.batches {
			return
		}
		list := segmentLists.Get().(*[]Segment)
		defer segmentLists.Put(list)
		for j := range q.BatchSize {
			source, start := q.Start(k, j)
			var err error
			if *list, err = q.sources[source].starts.rows.segments((*list)[:0], start); err != nil {
				yield(SourceWindow{}, err)
				return
			}
			for _, s := range *list {
				s = s.Copied()
				for c, column := range q.layout.columns {
					n := column.elementNumbers
					if !yield(SourceWindow{source, c, array.Window{Start: s.Start * int64(n), Len: s.Len * n}}, nil) {
						return
					}
				}
			}
		}
	}
}

// DocumentsOf returns the numbers in their source of the documents in row j of batch k, in order.
// It returns nil if the source has no Documents, and fails if it cannot read where they end.
func (q *Sequence) DocumentsOf(k uint64, j int) (numbers []int64, err error) {
	source, start := q.Start(k, j)
	from := q.sources[source]
	if from.documents == nil {
		return nil, nil
	}
	segments, err := from.starts.rows.segments(nil, start)
	if err == nil {
		_, numbers, err = from.starts.rows.appendDocuments(nil, nil, segments)
	}
	return numbers, err
}

// Counts returns the counts of each source. The caller must not change them.
func (q *Sequence) Counts() (list []RowCounts) {
	for _, s := range q.sources {
		list = append(list, s.starts.rows.counts())
	}
	return list
}

// Epoch returns the epoch of row j of batch k in its source or, with ShuffleBlock, in the host's
// share of it.
func (q *Sequence) Epoch(k uint64, j int) uint64 {
	source, index := q.schedule.sourceOf(q.ScheduleRow(k, j))
	return index / uint64(q.sources[source].share.windows)
}
