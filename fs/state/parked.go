package state

import "batchfs/fs/failpoint"

// park notes which batch the thread that is in the middle of a read(2) goes on with, when another thread takes the handle.
func (h *Handles) park(s *slot, fh uint64) {
	thread := s.thread.Load()
	p := h.findParked(fh, thread)
	for range h.shared.parked {
		if p != nil {
			break
		}
		if next := &h.shared.parked[h.shared.everParked.Add(1)%maxParked]; next.fh.Load() == 0 {
			p = next
		}
	}
	if p == nil { // as many threads ended in the middle, or are in it
		p = &h.shared.parked[h.shared.everParked.Add(1)%maxParked]
	}
	s.flags.Or(parks)
	p.fh.Store(0)
	p.thread.Store(thread)
	p.cut.Store(s.cut.Load())
	p.number.Store(s.number.Load())
	p.version.Store(s.flags.Load() >> versionShift)
	p.fh.Store(fh)
	failpoint.Hit("parked")
}

// findParked returns the batch that a thread is in the middle of, or nil.
func (h *Handles) findParked(fh, thread uint64) *parked {
	for i := range h.shared.parked {
		if p := &h.shared.parked[i]; p.fh.Load() == fh && p.thread.Load() == thread {
			return p
		}
	}
	return nil
}

// goOn notes that the thread of p makes request r, which has the batch of a, or nil if it has what the handle holds.
func (p *parked) goOn(r Read, a *assignment) {
	if r.Cut && a != nil && a.number.Load() == p.number.Load() {
		p.cut.Store(uint64(r.end()))
		return
	}
	p.fh.Store(0)
}
