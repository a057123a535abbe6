package sampler

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
)

// A Hit is a row that holds the token passed to Find.
type Hit struct {
	Row   uint64 // global number
	Index int    // index of the token in the row, from 0 to T
}

// NumPyExpressions returns NumPy expressions for the token at an index (see Hit) of row j of a
// batch: with layout xy, "x[3, 17]" unless index is T, and "y[3, 16]" unless it is 0.
func (q *Sequence) NumPyExpressions(j, index int) (list []string) {
	if q.Layout == Rows {
		return []string{fmt.Sprintf("rows[%d]", j)}
	}
	for _, a := range q.layout.arrays[:q.layout.batch.Main] {
		if column := index - a.firstNumber; column >= 0 && column < a.rowNumbers {
			list = append(list, fmt.Sprintf("%s[%d, %d]", a.name, j, column))
		}
	}
	return list
}

// Find returns the rows of an epoch that hold the token at position pos of a source, sorted by Row.
// It inverts shuffle and sequential. In any other order, it checks every row, and calls progress
// every 65,536 rows with the number checked and their total; if progress returns false, it stops.
// Find fails if it cannot read where documents end.
func (q *Sequence) Find(
	source int, pos int64, epoch uint64, progress func(rows, total int64) bool,
) (hits []Hit, err error) {
	from, ranks, host, err := q.hostSourceAt(source, pos)
	if err != nil {
		return nil, err
	}
	r, groupBatch, worldBatch := uint64(from.share.windows), uint64(q.BatchSize)*uint64(ranks), uint64(q.BatchSize)*uint64(q.World)
	globalRow := func(index uint64) uint64 {
		row := q.schedule.rowOf(source, index)
		return row/groupBatch*worldBatch + uint64(host)*groupBatch + row%groupBatch
	}
	end := q.batches*groupBatch - 1
	last := q.schedule.before(source, end) // number of the source's last row
	if endSource, _ := q.schedule.sourceOf(end); endSource != source {
		if last == 0 {
			return nil, nil // the source is not drawn
		}
		last--
	}
	if epoch > last/r {
		return nil, nil // the sequence ends before this epoch
	}
	rows := min(r-1, last-epoch*r) + 1
	ranges, err := from.starts.rows.rowsHolding(pos)
	if err != nil {
		return nil, err
	}
	if o, ok := from.order.(*epochOrder); ok {
		for row, index := range o.rowsHolding(ranges, epoch) {
			if row < rows {
				hits = append(hits, Hit{globalRow(epoch*r + row), index})
			}
		}
		sortHits(hits)
		return hits, nil
	}
	// Each rank has a torch generator of its own. They are searched one after the other, because
	// consecutive draws of one are faster.
	_, isTorch := from.order.(*torch)
	generators, b, s, checked := uint64(1), uint64(q.BatchSize), q.Settings, int64(0)
	if isTorch {
		generators = uint64(q.World)
	}
	for rank := range generators {
		drawn := from.order
		if isTorch {
			drawn = nil
		}
		for i := uint64(0); i < rows; i++ {
			row := epoch*r + i
			if ahead := (rank + generators - row/b%generators) % generators; ahead > 0 {
				i += ahead*b - row%b - 1 // to the last row before the next batch of rank
				continue
			}
			if drawn == nil {
				s.Rank = int(rank)
				if drawn, err = newTorch(s, from.starts); err != nil {
					return nil, err
				}
			}
			if checked%(1<<16) == 0 && !progress(checked, int64(rows)) {
				return hits, nil
			}
			checked++
			start := drawn.start(row)
			for _, held := range ranges {
				if start >= held.from && start < held.to {
					hits = append(hits, Hit{globalRow(row), int(held.element - start)})
				}
			}
		}
	}
	sortHits(hits)
	return hits, nil
}

func sortHits(hits []Hit) {
	slices.SortFunc(hits, func(a, b Hit) int { return cmp.Compare(a.Row, b.Row) })
}

// rowsHolding yields the rows of an epoch that hold an element, in any order, each with the index
// of the element. ranges are the result of sourceRows.rowsHolding.
func (o *epochOrder) rowsHolding(ranges []rowRange, epoch uint64) iter.Seq2[uint64, int] {
	return func(yield func(row uint64, index int) bool) {
		start := func(i int) int64 { return o.share.windowStart(int64(i)) }
		n := int(o.share.windows)
		for _, held := range ranges {
			first := sort.Search(n, func(i int) bool { return start(i) >= held.from })
			for i := first; i < n && start(i) < held.to; i++ {
				if !yield(o.permutation.inverse(epoch, uint64(i)), int(held.element-start(i))) {
					return
				}
			}
		}
	}
}

// hostSourceAt returns source i under the settings of the ranks that may read the element at pos,
// the number of these ranks, and their host. With ShuffleBlock, they are the ranks of one host,
// otherwise all.
func (q *Sequence) hostSourceAt(i int, pos int64) (from boundSource, ranks, host int, err error) {
	ranks, _ = q.epochGroup()
	hosts := q.Hosts()
	host = sort.Search(hosts-1, func(host int) bool {
		end, _ := cutAt(q.sources[i].arrays[0], q.ShuffleBlock, host+1, hosts)
		return pos < end
	})
	s := q.Settings
	s.Rank = host*ranks + s.Rank%ranks
	from, err = q.sources[i].bind(s, i)
	return from, ranks, host, err
}
