package state

import (
	"fmt"
	"sync/atomic"

	"batchfs/internal/failpoint"
)

// An unfinishedRead is a read(2) of a batch that the handle no longer holds, because another thread
// began the next batch before all requests of the read(2) had succeeded.
type unfinishedRead struct {
	fh        atomic.Uint64 // the handle; if this is 0 or a closed handle, the element is free
	thread    atomic.Uint64
	cutOffset atomic.Uint64 // offset of the next request
	number    atomic.Uint64 // batch number
	version   atomic.Uint64
}

const maxUnfinished = 1 << 8

// ErrShared is the error of a read that would interrupt another thread's read(2) on the same handle
// while there is no room for another unfinishedRead.
var ErrShared = fmt.Errorf("%d threads are in the middle of batches above 1 MiB on shared handles of next: "+
	"let each thread open next itself, or read batch/<k>", maxUnfinished)

// recordUnfinished records that a read(2) of a batch that the handle no longer holds continues at
// rest.Off. The error is ErrShared.
func (h *Handles) recordUnfinished(rest NextRead, number uint64) error {
	h.slot(rest.FH).flags.Or(hasUnfinished)
	own, free := h.findUnfinished(rest)
	u := own
	if u == nil {
		u = free
	}
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
func (h *Handles) findUnfinished(r NextRead) (own, free *unfinishedRead) {
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
