package state

import (
	"cmp"
	"fmt"

	"batchfs/internal/failpoint"
)

// ErrShared is the error of a read that would interrupt another thread's read(2) on the same handle
// while there is no room for another unfinishedRead.
var ErrShared = fmt.Errorf("%d threads are in the middle of batches above 1 MiB on shared handles of next: "+
	"let each thread open next itself, or read batch/<k>", maxUnfinished)

// recordUnfinished records that a read(2) of a batch that the handle no longer holds continues at
// rest.Off. The error is ErrShared.
func (h *Handles) recordUnfinished(rest ReadRequest, number uint64) error {
	h.slot(rest.FH).flags.Or(hasUnfinished)
	u := cmp.Or(h.findUnfinished(rest)) // the thread's own element or a free one
	if u == nil {
		return ErrShared
	}
	u.thread.Store(rest.Thread)
	u.cutOffset.Store(uint64(rest.Off))
	u.number.Store(number)
	u.version.Store(uint64(rest.Version))
	u.fh.Store(rest.FH)
	failpoint.Hit("unfinished")
	return nil
}

// findUnfinished returns the unfinishedRead of the thread that sends r, and a free element. Either
// can be nil.
func (h *Handles) findUnfinished(r ReadRequest) (own, free *unfinishedRead) {
	if h.slot(r.FH).flags.Load()&hasUnfinished == 0 {
		return nil, nil
	}
	for i := range h.shared.unfinished {
		u := &h.shared.unfinished[i]
		switch fh := u.fh.Load(); {
		case fh == r.FH && u.thread.Load() == r.Thread:
			own = u
		case h.stateOf(fh) == closed:
			free = u
		}
	}
	return own, free
}

// otherAssignment returns the assignment of a request for a batch other than its handle's, or nil.
// Such a request either continues an unfinished read(2), or was resent, in which case a is its
// earlier assignment. An unfinished read(2) ends with its last request, or with another request of
// its thread.
func (h *Handles) otherAssignment(s *slot, r ReadRequest, a *assignment) (other *assignment, err error) {
	u, _ := h.findUnfinished(r)
	switch {
	case a != nil && a.number.Load() != s.number.Load():
		other = a
	case u != nil && r.Off > 0 && r.Off == int64(u.cutOffset.Load()):
		other = h.recordAssignment(r.ID, u.number.Load(), Version(u.version.Load()))
	}
	switch {
	case other != nil && r.Off > 0 && other.version.Load() != uint64(r.Version):
		err = ErrOutdated
	case other != nil && r.Cut:
		r.Off = r.end()
		err = h.recordUnfinished(r, other.number.Load())
	case u != nil:
		u.fh.Store(0)
	}
	return other, err
}
