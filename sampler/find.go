package sampler

import (
	"cmp"
	"slices"
)

// A Hit is a row that holds a token.
type Hit struct {
	Row   uint64 // its global number
	Index int    // the token's in the row, from 0 to T: x is [0, T) of it and y is [1, T]
}

// Batch is the batch, the rank and the row of the batch that a global row is.
func (q *Sequence) Batch(row uint64) (k uint64, rank, j int) {
	b := uint64(q.BatchSize)
	global := b * uint64(q.World)
	return row / global, int(row % global / b), int(row % b)
}

// Find returns the rows of an epoch of the token's source that hold token pos. Of the orders that permute they are
// computed, and of the others searched: progress is called now and then with how many rows of how many were looked at, and
// ends the search by returning false. The torch orders know the rows of their rank alone.
func (q *Sequence) Find(pos int64, epoch uint64, progress func(rows, of int64) bool) (hits []Hit) {
	source := q.tokens.Locate(pos).Source
	w, o := q.sources[source].windows, q.sources[source].order
	r := uint64(w.disjoint.total())
	last := q.mixture.last(source, MaxBatches*uint64(q.BatchSize)*uint64(q.World)-1)
	if epoch > last/r {
		return nil // after the last batch
	}
	rows := min(r-1, last-epoch*r) + 1
	if p, ok := o.(permutation); ok {
		for _, window := range w.holding(pos) {
			if i := p.inverse(epoch, uint64(window)); i < rows {
				hits = append(hits, Hit{q.mixture.row(source, epoch*r+i), int(pos - w.disjointAt(window))})
			}
		}
		slices.SortFunc(hits, func(a, b Hit) int { return cmp.Compare(a.Row, b.Row) })
		return hits
	}
	_, ownRows := o.(*torch)
	for i := range rows {
		if i%(1<<16) == 0 && !progress(int64(i), int64(rows)) {
			return hits
		}
		row := q.mixture.row(source, epoch*r+i)
		if _, rank, _ := q.Batch(row); ownRows && rank != q.Rank {
			continue
		}
		if at := pos - o.start(epoch*r+i); at >= 0 && at <= w.size {
			hits = append(hits, Hit{row, int(at)})
		}
	}
	return hits
}

// holding are the disjoint windows whose T+1 tokens have pos among them: one, two where pos is the last of one and the
// first of the next, or none in the tail of a run.
func (w windows) holding(pos int64) (list []int64) {
	run := 0
	for run+1 < len(w.runs) && w.runs[run+1].Start <= pos {
		run++
	}
	first := int64(0)
	if run > 0 {
		first = w.disjoint[run-1]
	}
	count, in := w.disjoint[run]-first, pos-w.runs[run].Start
	if i := in/w.size - 1; in%w.size == 0 && i >= 0 && i < count {
		list = append(list, first+i)
	}
	if i := in / w.size; i < count {
		list = append(list, first+i)
	}
	return list
}
