package state

import (
	"cmp"
	"fmt"

	"batchfs/internal/failpoint"
)

// ErrShared is the error of a thread that begins a batch while another one is in the middle of a
// read(2), if there is no room to record where that one continues.
var ErrShared = fmt.Errorf("%d threads are in the middle of batches above 1 MiB, of handles of next that they share with others: "+
	"each thread should open next itself, or read batch/<k>", maxUnfinished)

// setAside records the rest of a read(2): the batch that it belongs to, which the handle does not
// hold any more, and where it begins. The error is ErrShared.
func (h *Handles) setAside(rest ReadRequest, number uint64) error {
	h.slot(rest.FH).flags.Or(hasUnfinished)
	u := cmp.Or(h.findUnfinished(rest)) // the thread's own element, or else a free one
	if u == nil {
		return ErrShared
	}
	u.thread.Store(rest.Thread)
	u.cut.Store(uint64(rest.Off))
	u.number.Store(number)
	u.version.Store(uint64(rest.Version))
	u.fh.Store(rest.FH)
	failpoint.Hit("unfinished")
	return nil
}

// findUnfinished returns the unfinished read(2) of the thread that sends r, and a free element.
// Each is nil if there is none.
func (h *Handles) findUnfinished(r ReadRequest) (own, free *unfinished) {
	if h.slot(r.FH).flags.Load()&hasUnfinished == 0 {
		return nil, nil
	}
	for i := range h.shared.unfinished {
		u := &h.shared.unfinished[i]
		switch fh := u.fh.Load(); {
		case fh == r.FH && u.thread.Load() == r.Thread:
			own = u
		case h.state(fh) == closed:
			free = u
		}
	}
	return own, free
}

// readOther returns the assignment of a request that reads another batch than its handle holds, or
// nil. Such a request is the rest of an unfinished read(2), or it was sent again, and a is what it
// was assigned before, or nil. Any other request ends the thread's unfinished read(2).
func (h *Handles) readOther(s *slot, r ReadRequest, a *assignment) (other *assignment, err error) {
	u, _ := h.findUnfinished(r)
	switch {
	case a != nil && a.number.Load() != s.number.Load():
		other = a
	case u != nil && r.Off > 0 && r.Off == int64(u.cut.Load()):
		other = h.recordAssignment(r.ID, u.number.Load(), Version(u.version.Load()))
	}
	switch {
	case other != nil && r.Off > 0 && other.version.Load() != uint64(r.Version):
		err = ErrOutdated
	case other != nil && r.Cut:
		r.Off = r.end()
		err = h.setAside(r, other.number.Load())
	case u != nil:
		u.fh.Store(0)
	}
	return other, err
}
