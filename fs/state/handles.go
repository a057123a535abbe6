package state

import (
	"sync"
	"sync/atomic"

	"batchfs/fs/failpoint"
)

// A Span is the part of a file that a request reads: Len bytes from Off on, of a file of Size bytes.
type Span struct{ Off, Len, Size int64 }

func (r Span) toEnd() bool { return r.Off+r.Len == r.Size }

// Handles hands out handles and batch numbers to the requests of the worker that serves. It is safe for concurrent use.
//
// Lock order: mu is taken last, after every lock of package fs.
type Handles struct {
	shared *Shared
	mu     sync.Mutex // serialises slots and numbers: at most one number is half assigned
	free   []uint32   // slots that were used and are not now; guarded by mu
}

// NewHandles goes on from what is in the shared memory, in which nobody else works any more.
func NewHandles(shared *Shared) *Handles {
	h := &Handles{shared: shared}
	for i := range shared.slotsUsed.Load() {
		switch s := &shared.slots[i]; {
		case s.sequence.Load() == 0:
			h.free = append(h.free, uint32(i))
		case s.asking.Load() != 0:
			// No other number was assigned since, so this one was assigned exactly if the cursor has passed it.
			if h.cursor(s).Load() > s.wanted.Load() {
				h.finish(s)
			}
			s.asking.Store(0)
		}
	}
	return h
}

func (h *Handles) slot(fh uint64) *slot { return &h.shared.slots[fh%MaxHandles] }

func (h *Handles) cursor(s *slot) *atomic.Uint64 {
	return &h.shared.Sequences[s.sequence.Load()].Cursor
}

// Pass takes and releases the lock. It blocks if a request never releases it.
func (h *Handles) Pass() {
	h.mu.Lock()
	h.mu.Unlock() //lint:ignore SA2001 only whether it can be taken matters
}

// Open takes a slot for a handle of a sequence's next, for request id. A handle that peeks looks at the batch that comes next
// and takes none. Idempotent: a request that is sent again gets the handle it got first. ok is false when MaxHandles are open.
func (h *Handles) Open(sequence int, peeking bool, id uint64) (fh uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	shared := h.shared
	if id&Resent != 0 {
		id &^= Resent
		for i := range shared.slotsUsed.Load() {
			if s := &shared.slots[i]; s.opener.Load() == id && s.sequence.Load() == uint64(sequence) {
				return s.opens.Load()*MaxHandles + i, true
			}
		}
	}
	var i uint64
	switch n := len(h.free); {
	case n > 0:
		i, h.free = uint64(h.free[n-1]), h.free[:n-1]
	case shared.slotsUsed.Load() < MaxHandles:
		i = shared.slotsUsed.Add(1) - 1
	default:
		return 0, false
	}
	s := &shared.slots[i]
	flags := uint64(0)
	if peeking {
		flags = peeks
	}
	s.opener.Store(id)
	s.flags.Store(flags)
	s.number.Store(0)
	s.holder.Store(0)
	s.asking.Store(0)
	s.delivered.Store(0)
	s.counted.Store(0)
	opens := s.opens.Add(1)
	failpoint.Hit("open")
	s.sequence.Store(uint64(sequence))
	return opens*MaxHandles + i, true
}

// Release frees a handle's slot, unless an earlier request did.
func (h *Handles) Release(fh uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slot(fh)
	if s.opens.Load() != fh/MaxHandles || s.sequence.Load() == 0 {
		return
	}
	s.sequence.Store(0)
	h.free = append(h.free, uint32(fh%MaxHandles))
}

// AssignBatch returns which batch request id reads on handle fh: the batch that the handle holds, or the cursor's next one at
// the handle's first read, and at a read of the beginning once the handle's batch was delivered whole. Idempotent: a request
// that is sent again gets the number it got first.
//
// Delivered whole means its last byte, and as many bytes as there are: C's fseek to the end reads the last page, and a program
// that finds out a file's size that way (numpy.fromfile) has not had the batch yet.
//
// version is that of the tokens that will be read. ok is false in the middle of a batch of another version, which can only be
// read again from its beginning.
func (h *Handles) AssignBatch(fh, id uint64, r Span, version Version) (k uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slot(fh)
	if s.opens.Load() != fh/MaxHandles || s.sequence.Load() == 0 {
		return 0, false // a request that was answered long ago, of a handle that is closed
	}
	if id&Resent != 0 {
		id &^= Resent
		if k, ok := h.assignedEarlier(s, id); ok {
			return k, true
		}
	}
	flags := s.flags.Load()
	whole := flags&ended != 0 && s.delivered.Load() >= uint64(r.Size)
	switch {
	case flags&holds == 0 || whole && r.Off == 0 && s.holder.Load() != id:
		h.assign(s, id, version)
	case flags>>versionShift == uint64(version):
	case r.Off > 0:
		return 0, false
	default:
		s.delivered.Store(0)
		s.counted.Store(0) // the request may have been sent before, and was counted then
		s.flags.Store(flags&peeks | holds | uint64(version)<<versionShift)
	}
	failpoint.Hit("count")
	if s.counted.Load() != id {
		s.delivered.Add(uint64(r.Len))
		failpoint.Hit("counted")
		s.counted.Store(id)
	}
	if r.toEnd() && s.flags.Load()&ended == 0 {
		s.ender.Store(id)
		s.flags.Or(ended)
	}
	return s.number.Load(), true
}

// assignedEarlier returns the number that was assigned to request id, if the handle holds a later one by now.
func (h *Handles) assignedEarlier(s *slot, id uint64) (k uint64, ok bool) {
	if s.holder.Load() == id {
		return 0, false
	}
	for i := range h.shared.assignments {
		if a := &h.shared.assignments[i]; a.id.Load() == id {
			return a.number.Load(), true
		}
	}
	return 0, false
}

// assign gives slot s the cursor's number. It can be cut at any failpoint, and NewHandles completes it.
func (h *Handles) assign(s *slot, id uint64, version Version) {
	cursor := h.cursor(s)
	s.wanted.Store(cursor.Load())
	s.version.Store(uint64(version))
	failpoint.Hit("want")
	s.asking.Store(id)
	failpoint.Hit("ask")
	if s.flags.Load()&peeks == 0 {
		cursor.Store(s.wanted.Load() + 1)
	}
	h.finish(s)
	failpoint.Hit("taken")
	s.asking.Store(0)
}

// finish notes in slot s that it holds the number that it asked for.
func (h *Handles) finish(s *slot) {
	id, number := s.asking.Load(), s.wanted.Load()
	failpoint.Hit("note")
	a := &h.shared.assignments[h.shared.assigned.Add(1)%maxAssignments]
	a.id.Store(0)
	failpoint.Hit("note number")
	a.number.Store(number)
	a.id.Store(id)
	failpoint.Hit("noted")
	s.number.Store(number)
	failpoint.Hit("number")
	s.holder.Store(id)
	failpoint.Hit("taker")
	s.delivered.Store(0)
	failpoint.Hit("delivered")
	s.flags.Store(s.flags.Load()&peeks | holds | s.version.Load()<<versionShift)
}

// GiveBack notes that a span of batch k was not delivered to request id, on handle fh, after all. A batch of which nothing was delivered goes
// to the next reader instead; if another number was assigned meanwhile, the handle goes on holding k.
func (h *Handles) GiveBack(fh, id, k uint64, r Span) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slot(fh)
	if s.opens.Load() != fh/MaxHandles || s.sequence.Load() == 0 || s.number.Load() != k {
		return // the handle is closed, or threads share it and another has gone on
	}
	flags := s.flags.Load()
	if r.toEnd() && s.ender.Load() == id&^Resent { // or else another request has delivered the end
		flags &^= ended
	}
	left := s.delivered.Add(-uint64(r.Len))
	s.counted.Store(0) // the same request may go on with other tokens
	if cursor := h.cursor(s); left == 0 && cursor.Load() == k+1 && flags&peeks == 0 {
		for i := range h.shared.assignments { // or the same request, sent again, would get it
			if a := &h.shared.assignments[i]; a.id.Load() == s.holder.Load() {
				a.id.Store(0)
			}
		}
		s.flags.Store(flags &^ holds) // first: a number may be lost here, but never be held twice
		failpoint.Hit("back")
		cursor.Store(k)
		return
	}
	s.flags.Store(flags)
}

// Holds returns the number that handle fh holds, or held last.
func (h *Handles) Holds(fh uint64) uint64 { return h.slot(fh).number.Load() }
