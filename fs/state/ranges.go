package state

import (
	"cmp"
	"slices"
	"sync/atomic"

	"batchfs/internal/failpoint"
)

// A rangeList holds at most maxRanges ascending byte ranges, with gaps between them.
type rangeList struct {
	n      atomic.Uint64
	inline [maxInline]byteRange // used if n <= maxInline, else Shared.manyRanges
}

type byteRange struct{ from, to int64 }

const (
	maxInline = 3   // number of ranges for which a list has room in its slot
	maxRanges = 128 // number of ranges for which it has room outside
)

// rangesOf returns the ranges that have been delivered of the batch that a handle holds. The result
// aliases the shared memory.
func (h *Handles) rangesOf(fh uint64) []byteRange {
	s := h.slot(fh)
	l := s.currentList.Load()
	return h.list(fh, l, s.lists[l].n.Load())
}

// list returns the memory for n ranges in list l of a handle, which is 0 or 1.
func (h *Handles) list(fh, l, n uint64) []byteRange {
	if n > maxInline {
		return h.shared.manyRanges[fh%MaxHandles][l][:n]
	}
	return h.slot(fh).lists[l].inline[:n]
}

// setRanges replaces the ranges of a handle, by at most maxRanges others. If the worker dies before
// setRanges returns, the handle has either the old ranges or the new ones.
func (h *Handles) setRanges(fh uint64, ranges []byteRange) {
	s, n := h.slot(fh), uint64(len(ranges))
	l := 1 - s.currentList.Load()
	copy(h.list(fh, l, n), ranges)
	s.lists[l].n.Store(n)
	failpoint.Hit("listed")
	s.currentList.Store(l)
	failpoint.Hit("delivered")
}

func (s *slot) forgetRanges() { s.lists[s.currentList.Load()].n.Store(0) }

// withRange appends to merged what the ranges of the handle of r will be once r is delivered.
func (h *Handles) withRange(merged []byteRange, r NextRead) []byteRange {
	joined := byteRange{r.Off, r.end()}
	for _, o := range h.rangesOf(r.FH) {
		if joined.from <= o.to && o.from <= joined.to {
			joined = byteRange{min(joined.from, o.from), max(joined.to, o.to)}
		} else {
			merged = append(merged, o)
		}
	}
	merged = append(merged, joined)
	slices.SortFunc(merged, func(a, b byteRange) int { return cmp.Compare(a.from, b.from) })
	return merged
}

// addRange records that r is delivered. It reports whether r has a byte that was not delivered
// before. merged is the result of withRange.
func (h *Handles) addRange(r NextRead, merged []byteRange) (added bool) {
	if slices.Equal(merged, h.rangesOf(r.FH)) {
		return false
	}
	if s := h.slot(r.FH); merged[0] == (byteRange{0, r.Size}) {
		s.lastFrom.Store(uint64(r.Off))
		s.lastTo.Store(uint64(r.end()))
		s.lastThread.Store(r.Thread)
	}
	h.setRanges(r.FH, merged)
	return true
}

// removeRange records that r is not delivered after all.
func (h *Handles) removeRange(r NextRead) {
	left := make([]byteRange, 0, maxInline+1)
	for _, old := range h.rangesOf(r.FH) {
		if before := (byteRange{old.from, min(old.to, r.Off)}); before.from < before.to {
			left = append(left, before)
		}
		if after := (byteRange{max(old.from, r.end()), old.to}); after.from < after.to {
			left = append(left, after)
		}
	}
	// If there is no room for a range, it counts as not delivered, so the reader can read it again.
	h.setRanges(r.FH, left[:min(len(left), maxRanges)])
}
