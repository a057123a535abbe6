package sampler

import (
	"iter"
	"sync"

	"batchfs/cache/array"
)

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
