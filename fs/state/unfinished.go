package state

import "batchfs/fs/failpoint"

// leave notes that a thread will read batch k from byte cut on, while another thread takes the handle.
func (h *Handles) leave(thread uint64, cut int64, fh, k uint64, version Version) {
	p := h.findUnfinished(fh, thread)
	for range h.shared.unfinished {
		if p != nil {
			break
		}
		if next := &h.shared.unfinished[h.shared.everUnfinished.Add(1)%maxUnfinished]; next.fh.Load() == 0 {
			p = next
		}
	}
	if p == nil { // as many threads ended in the middle, or are in it
		p = &h.shared.unfinished[h.shared.everUnfinished.Add(1)%maxUnfinished]
	}
	h.slot(fh).flags.Or(leaves)
	p.fh.Store(0)
	p.thread.Store(thread)
	p.cut.Store(uint64(cut))
	p.number.Store(k)
	p.version.Store(uint64(version))
	p.fh.Store(fh)
	failpoint.Hit("unfinished")
}

// findUnfinished returns the batch that a thread is in the middle of, or nil.
func (h *Handles) findUnfinished(fh, thread uint64) *unfinished {
	for i := range h.shared.unfinished {
		if p := &h.shared.unfinished[i]; p.fh.Load() == fh && p.thread.Load() == thread {
			return p
		}
	}
	return nil
}

// goOn notes that the thread of p makes request r, which has the batch of a, or nil if it has what the handle holds.
func (p *unfinished) goOn(r Read, a *assignment) {
	if r.Cut && a != nil && a.number.Load() == p.number.Load() {
		if r.Off == 0 { // sent again, of other tokens perhaps
			p.version.Store(uint64(r.Version))
		}
		p.cut.Store(uint64(r.end()))
		return
	}
	p.fh.Store(0)
}
