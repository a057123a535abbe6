package state

import (
	"slices"

	"batchfs/internal/failpoint"
)

func (h *Handles) ranges(fh uint64) []byteRange {
	s := h.slot(fh)
	l := s.current.Load()
	list := &s.lists[l]
	if n := list.n.Load(); n <= fewRanges {
		return list.few[:n]
	}
	return h.shared.manyRanges[fh%MaxHandles][l][:list.n.Load()]
}

// setRanges replaces the ranges of handle fh. A worker that is killed in it leaves them as they were. The error is ErrRanges.
func (h *Handles) setRanges(fh uint64, ranges []byteRange) error {
	if len(ranges) > maxRanges {
		return ErrRanges
	}
	s := h.slot(fh)
	l := 1 - s.current.Load()
	list := &s.lists[l]
	if len(ranges) > fewRanges {
		copy(h.shared.manyRanges[fh%MaxHandles][l][:], ranges)
	} else {
		copy(list.few[:], ranges)
	}
	list.n.Store(uint64(len(ranges)))
	failpoint.Hit("listed")
	s.current.Store(l)
	failpoint.Hit("delivered")
	return nil
}

func (s *slot) forgetRanges() { s.lists[s.current.Load()].n.Store(0) }

func (h *Handles) isWhole(fh uint64) bool {
	ranges := h.ranges(fh)
	return len(ranges) == 1 && ranges[0] == byteRange{0, int64(h.slot(fh).size.Load())}
}

// deliver says whether some bytes of r were not delivered before.
func (h *Handles) deliver(r Read) (added bool, err error) {
	p := byteRange{r.Off, r.end()}
	h.scratch = h.scratch[:0]
	later := len(h.scratch)
	for _, old := range h.ranges(r.FH) {
		switch {
		case old.to < p.from:
			h.scratch = append(h.scratch, old)
			later = len(h.scratch)
		case p.to < old.from:
			h.scratch = append(h.scratch, old)
		case old.from <= p.from && p.to <= old.to:
			return false, nil
		default:
			p = byteRange{min(p.from, old.from), max(p.to, old.to)}
		}
	}
	h.scratch = slices.Insert(h.scratch, later, p)
	if s := h.slot(r.FH); p == (byteRange{0, r.Size}) {
		s.lastFrom.Store(uint64(r.Off))
		s.lastTo.Store(uint64(r.end()))
		s.lastThread.Store(r.Thread)
	}
	return true, h.setRanges(r.FH, h.scratch)
}

func (h *Handles) takeBack(r Read) {
	h.scratch = h.scratch[:0]
	for _, old := range h.ranges(r.FH) {
		if left := (byteRange{old.from, min(old.to, r.Off)}); left.from < left.to {
			h.scratch = append(h.scratch, left)
		}
		if right := (byteRange{max(old.from, r.end()), old.to}); right.from < right.to {
			h.scratch = append(h.scratch, right)
		}
	}
	// One range too many is read again.
	h.setRanges(r.FH, h.scratch[:min(len(h.scratch), maxRanges)])
}
