package state

import (
	"slices"

	"batchfs/fs/failpoint"
)

// pieces are those of the batch of handle fh that were delivered.
func (h *Handles) pieces(fh uint64) []piece {
	s := h.slot(fh)
	l := s.current.Load()
	list := &s.lists[l]
	if n := list.n.Load(); n > fewPieces {
		return h.shared.manyPieces[fh%MaxHandles][l][:n]
	} else {
		return list.few[:n]
	}
}

// setPieces replaces the pieces of handle fh. A worker that is killed in it leaves them as they were. The error is ErrPieces.
func (h *Handles) setPieces(fh uint64, pieces []piece) error {
	if len(pieces) > maxPieces {
		return ErrPieces
	}
	s := h.slot(fh)
	l := 1 - s.current.Load()
	list := &s.lists[l]
	if len(pieces) > fewPieces {
		copy(h.shared.manyPieces[fh%MaxHandles][l][:], pieces)
	} else {
		copy(list.few[:], pieces)
	}
	list.n.Store(uint64(len(pieces)))
	failpoint.Hit("listed")
	s.current.Store(l)
	failpoint.Hit("delivered")
	return nil
}

func (s *slot) forgetPieces() { s.lists[s.current.Load()].n.Store(0) }

// isWhole says whether each byte of the batch of handle fh was delivered.
func (h *Handles) isWhole(fh uint64) bool {
	pieces := h.pieces(fh)
	return len(pieces) == 1 && pieces[0] == piece{0, int64(h.slot(fh).size.Load())}
}

// deliver notes that what r reads was delivered. added says whether some of it was not before.
func (h *Handles) deliver(r Read) (added bool, err error) {
	p := piece{r.Off, r.end()}
	h.scratch = h.scratch[:0]
	later := len(h.scratch)
	for _, old := range h.pieces(r.FH) {
		switch {
		case old.to < p.from:
			h.scratch = append(h.scratch, old)
			later = len(h.scratch)
		case p.to < old.from:
			h.scratch = append(h.scratch, old)
		case old.from <= p.from && p.to <= old.to:
			return false, nil
		default:
			p = piece{min(p.from, old.from), max(p.to, old.to)}
		}
	}
	h.scratch = slices.Insert(h.scratch, later, p)
	if s := h.slot(r.FH); p == (piece{0, r.Size}) {
		s.lastFrom.Store(uint64(r.Off))
		s.lastTo.Store(uint64(r.end()))
		s.lastThread.Store(r.Thread)
	}
	return true, h.setPieces(r.FH, h.scratch)
}

// takeBack notes that what r reads was not delivered.
func (h *Handles) takeBack(r Read) {
	h.scratch = h.scratch[:0]
	for _, old := range h.pieces(r.FH) {
		if left := (piece{old.from, min(old.to, r.Off)}); left.from < left.to {
			h.scratch = append(h.scratch, left)
		}
		if right := (piece{max(old.from, r.end()), old.to}); right.from < right.to {
			h.scratch = append(h.scratch, right)
		}
	}
	// One piece too many is read again.
	h.setPieces(r.FH, h.scratch[:min(len(h.scratch), maxPieces)])
}
