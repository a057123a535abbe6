package state

import "batchfs/internal/failpoint"

// noteUnfinished: the thread will read batch k from byte cut on, and another thread takes the handle.
func (h *Handles) noteUnfinished(thread uint64, cut int64, fh, k uint64, version Version) {
	u := h.findUnfinished(fh, thread)
	for tries := 0; u == nil; tries++ {
		next := &h.shared.unfinished[h.shared.everUnfinished.Add(1)%maxUnfinished]
		if next.fh.Load() == 0 || tries == maxUnfinished { // as many threads ended in the middle, or are in it
			u = next
		}
	}
	h.slot(fh).flags.Or(hasUnfinished)
	u.fh.Store(0)
	u.thread.Store(thread)
	u.cut.Store(uint64(cut))
	u.number.Store(k)
	u.version.Store(uint64(version))
	u.fh.Store(fh)
	failpoint.Hit("unfinished")
}

// findUnfinished returns the read(2) that a thread is in the middle of, or nil.
func (h *Handles) findUnfinished(fh, thread uint64) *unfinished {
	for i := range h.shared.unfinished {
		if u := &h.shared.unfinished[i]; u.fh.Load() == fh && u.thread.Load() == thread {
			return u
		}
	}
	return nil
}

// advance notes request r of the thread, which has the batch of a, or the handle's if a is nil.
func (u *unfinished) advance(r Read, a *assignment) {
	if r.Cut && a != nil && a.number.Load() == u.number.Load() {
		if r.Off == 0 { // sent again, of other tokens perhaps
			u.version.Store(uint64(r.Version))
		}
		u.cut.Store(uint64(r.end()))
		return
	}
	u.fh.Store(0)
}
