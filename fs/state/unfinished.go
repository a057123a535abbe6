package state

import "batchfs/fs/failpoint"

// park notes that a thread goes on with batch k at byte cut, while another thread takes the handle.
func (h *Handles) park(thread uint64, cut int64, fh, k uint64, version Version) {
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
	h.slot(fh).flags.Or(parks)
	p.fh.Store(0)
	p.thread.Store(thread)
	p.cut.Store(uint64(cut))
	p.number.Store(k)
	p.version.Store(uint64(version))
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
		if r.Off == 0 { // sent again, of other tokens perhaps
			p.version.Store(uint64(r.Version))
		}
		p.cut.Store(uint64(r.end()))
		return
	}
	p.fh.Store(0)
}
