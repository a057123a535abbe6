package sampler

import (
	"cmp"
	"slices"
)

// A Hit is a row that holds the token that Find looked for.
type Hit struct {
	Row   uint64 // its global number
	Index int    // of the token in the row, from 0 to T: see Elements
}

// Elements are where token index of row j, a Hit's Index, stands in the arrays of its batch. With layout tokens that is
// tokens[j, index]; with layout xy it is x[j, index] unless index is T, and y[j, index-1] unless index is 0.
func (q *Sequence) Elements(j, index int) []Element { return q.parts.elements(j, index) }

// Find returns the rows of an epoch that hold the token at position pos of a source, sorted by Row. Rows whose batches have no
// number are left out. The error is one of reading where documents end.
//
// Under the orders shuffle and sequential the rows are computed, and progress is not called. Under the others every row of the
// epoch is looked at: progress is called every 65,536 rows with how many rows of how many were looked at, and ends the search by
// returning false. A torch order finds the rows of its own rank only.
func (q *Sequence) Find(source int, pos int64, epoch uint64, progress func(rows, of int64) bool) (hits []Hit, err error) {
	w, o := q.sources[source].windows, q.sources[source].order
	r := uint64(w.disjoint)
	last := q.mixture.lastOf(source, MaxBatches*uint64(q.BatchSize)*uint64(q.World)-1)
	if epoch > last/r {
		return nil, nil // after the last batch
	}
	rows := min(r-1, last-epoch*r) + 1
	var places []place
	if w.pieces != nil {
		if places, err = w.pieces.holding(pos); err != nil {
			return nil, err
		}
	}
	if p, ok := o.(permutation); ok {
		if w.pieces == nil {
			for _, window := range w.holding(pos) {
				places = append(places, place{window, int(pos - w.disjointAt(window))})
			}
		}
		for _, at := range places {
			if i := p.inverse(epoch, uint64(at.row)); i < rows {
				hits = append(hits, Hit{q.mixture.rowOf(source, epoch*r+i), at.index})
			}
		}
		slices.SortFunc(hits, func(a, b Hit) int { return cmp.Compare(a.Row, b.Row) })
		return hits, nil
	}
	_, ownRows := o.(*torch)
	for i := range rows {
		if i%(1<<16) == 0 && !progress(int64(i), int64(rows)) {
			return hits, nil
		}
		row := q.mixture.rowOf(source, epoch*r+i)
		if _, rank, _ := q.BatchOf(row); ownRows && rank != q.Rank {
			continue
		}
		start := o.start(epoch*r + i)
		if index := pos - start; w.pieces == nil && index >= 0 && index < w.len {
			hits = append(hits, Hit{row, int(index)})
		}
		for _, at := range places {
			if at.row == start {
				hits = append(hits, Hit{row, at.index})
			}
		}
	}
	return hits, nil
}
