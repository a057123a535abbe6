package sampler

import (
	"cmp"
	"slices"
	"sort"
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
	from, ranks, host, err := q.holder(source, pos)
	if err != nil {
		return nil, err
	}
	w, o := from.windows, from.order
	r, own, all := uint64(from.share.n), uint64(q.BatchSize)*uint64(ranks), uint64(q.BatchSize)*uint64(q.World)
	rowOf := func(index uint64) uint64 { // among those of all hosts
		row := q.mixture.rowOf(source, index)
		return row/own*all + uint64(host)*own + row%own
	}
	last := q.mixture.lastOf(source, MaxBatches*own-1)
	if epoch > last/r {
		return nil, nil // after the last batch
	}
	rows := min(r-1, last-epoch*r) + 1
	var places []place
	if w.segments != nil {
		if places, err = w.segments.holding(pos); err != nil {
			return nil, err
		}
	}
	if p, ok := o.(permutation); ok {
		if w.segments == nil {
			places = from.share.holding(pos)
		}
		for _, at := range places {
			if i := p.inverse(epoch, uint64(at.row)); i < rows {
				hits = append(hits, Hit{rowOf(epoch*r + i), at.index})
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
		row := rowOf(epoch*r + i)
		if _, rank, _ := q.BatchOf(row); ownRows && rank != q.Rank {
			continue
		}
		start := o.start(epoch*r + i)
		if index := pos - start; w.segments == nil && index >= 0 && index < w.len {
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

// holder is a source as the ranks have it that may read the token at a position: those of the host in whose share that is, or all.
func (q *Sequence) holder(i int, pos int64) (from source, ranks, host int, err error) {
	from = q.sources[i]
	ranks, _ = q.together()
	if q.ShuffleBlock == 0 {
		return from, ranks, 0, nil
	}
	hosts := q.World / ranks
	host = sort.Search(hosts, func(host int) bool {
		end, _ := cutAt(from.arrays[0], q.ShuffleBlock, host+1, hosts)
		return pos < end
	})
	s := q.Settings
	s.Rank = host * ranks
	from, err = from.with(s, i)
	return from, ranks, host, err
}
