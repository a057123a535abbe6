package state

import (
	"cmp"
	"slices"

	"batchfs/internal/failpoint"
)

// rangesOf returns the delivered ranges of the batch that a handle holds. The result aliases the
// shared memory.
func (h *Handles) rangesOf(fh uint64) []byteRange {
	s := h.slot(fh)
	l := s.currentList.Load()
	return h.list(fh, l, s.lists[l].n.Load())
}

// list returns the memory of n ranges in list l of a handle.
func (h *Handles) list(fh, l, n uint64) []byteRange {
	if n > maxInline {
		return h.shared.manyRanges[fh%MaxHandles][l][:n]
	}
	return h.slot(fh).lists[l].inline[:n]
}

// setRanges replaces the ranges of a handle. If the worker dies in the middle, the old ranges stay.
// The error is ErrRanges.
func (h *Handles) setRanges(fh uint64, ranges []byteRange) error {
	if len(ranges) > maxRanges {
		return ErrRanges
	}
	s, n := h.slot(fh), uint64(len(ranges))
	l := 1 - s.currentList.Load()
	copy(h.list(fh, l, n), ranges)
	s.lists[l].n.Store(n)
	failpoint.Hit("listed")
	s.currentList.Store(l)
	failpoint.Hit("delivered")
	return nil
}

func (s *slot) forgetRanges() { s.lists[s.currentList.Load()].n.Store(0) }

// addRange records that r is delivered, and reports whether any byte was not delivered before. The
// error is ErrRanges.
func (h *Handles) addRange(r ReadRequest) (added bool, err error) {
	old, merged := h.rangesOf(r.FH), make([]byteRange, 0, maxInline+1)
	joined := byteRange{r.Off, r.end()}
	for _, o := range old {
		if joined.from <= o.to && o.from <= joined.to {
			joined = byteRange{min(joined.from, o.from), max(joined.to, o.to)}
		} else {
			merged = append(merged, o)
		}
	}
	merged = append(merged, joined)
	slices.SortFunc(merged, func(a, b byteRange) int { return cmp.Compare(a.from, b.from) })
	if slices.Equal(merged, old) {
		return false, nil
	}
	if s := h.slot(r.FH); joined == (byteRange{0, r.Size}) {
		s.lastFrom.Store(uint64(r.Off))
		s.lastTo.Store(uint64(r.end()))
		s.lastThread.Store(r.Thread)
	}
	return true, h.setRanges(r.FH, merged)
}

// removeRange records that r is not delivered after all.
func (h *Handles) removeRange(r ReadRequest) {
	left := make([]byteRange, 0, maxInline+1)
	for _, old := range h.rangesOf(r.FH) {
		if before := (byteRange{old.from, min(old.to, r.Off)}); before.from < before.to {
			left = append(left, before)
		}
		if after := (byteRange{max(old.from, r.end()), old.to}); after.from < after.to {
			left = append(left, after)
		}
	}
	// A range that does not fit may be dropped, because the reader can read it again.
	h.setRanges(r.FH, left[:min(len(left), maxRanges)])
}
