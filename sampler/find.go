package sampler

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// A Hit is a row that holds the token that Find looked for.
type Hit struct {
	Row   uint64 // its global number
	Index int    // of the token in the row, from 0 to T: see Elements
}

// Elements are where token index of row j, a Hit's Index, stands in the arrays of its batch, as NumPy indexes them: with layout xy "x[3, 17]"
// unless index is T, and "y[3, 16]" unless it is 0.
func (q *Sequence) Elements(j, index int) (list []string) {
	if q.Layout == Elements {
		return []string{fmt.Sprintf("rows[%d]", j)}
	}
	for _, p := range q.layout.list[:q.layout.batch.Main] {
		if column := index - p.first; column >= 0 && column < p.len {
			list = append(list, fmt.Sprintf("%s[%d, %d]", p.name, j, column))
		}
	}
	return list
}

// Find returns the rows of an epoch that hold the token at position pos of a source, sorted by Row; a torch order finds those of its own
// rank only. Unless the order is shuffle or sequential, it looks at every row: it calls progress every 65,536 rows with how many of how
// many it has looked at, and stops if that returns false. The error is one of reading where documents end.
func (q *Sequence) Find(source int, pos int64, epoch uint64, progress func(rows, of int64) bool) (hits []Hit, err error) {
	from, ranks, host, err := q.holder(source, pos)
	if err != nil {
		return nil, err
	}
	o := from.order
	r, own, all := uint64(from.hostShare.n), uint64(q.BatchSize)*uint64(ranks), uint64(q.BatchSize)*uint64(q.World)
	rowOf := func(index uint64) uint64 { // the global number
		row := q.mixture.rowOf(source, index)
		return row/own*all + uint64(host)*own + row%own
	}
	end := MaxBatches*own - 1
	last := q.mixture.before(source, end) // of the source's rows
	if of, _ := q.mixture.sourceOf(end); of != source {
		last--
	}
	if epoch > last/r {
		return nil, nil // after the last batch
	}
	rows := min(r-1, last-epoch*r) + 1
	ranges, err := from.starts.holding(pos)
	if err != nil {
		return nil, err
	}
	if p, ok := o.(*epochs); ok {
		for _, each := range ranges {
			first := int64(sort.Search(int(p.n), func(i int) bool { return p.at(int64(i)) >= each.from }))
			for i := first; i < p.n && p.at(i) < each.to; i++ {
				if row := p.inverse(epoch, uint64(i)); row < rows {
					hits = append(hits, Hit{rowOf(epoch*r + row), int(each.at - p.at(i))})
				}
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
		for _, each := range ranges {
			if start >= each.from && start < each.to {
				hits = append(hits, Hit{row, int(each.at - start)})
			}
		}
	}
	return hits, nil
}

// holder is a source as it is for the ranks that may read the token at a position: the ranks of the host in whose share the token lies, or all ranks.
func (q *Sequence) holder(i int, pos int64) (from source, ranks, host int, err error) {
	ranks, _ = q.together()
	hosts := q.World / ranks
	host = sort.Search(hosts-1, func(host int) bool {
		end, _ := cutAt(q.sources[i].arrays[0], q.ShuffleBlock, host+1, hosts)
		return pos < end
	})
	s := q.Settings
	s.Rank = host*ranks + s.Rank%ranks
	from, err = q.sources[i].with(s, i)
	return from, ranks, host, err
}
