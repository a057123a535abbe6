package state

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"batchfs/internal/failpoint"
)

// A Span is the range of a file that a request reads: Len bytes at offset Off of a file of Size
// bytes.
type Span struct{ Off, Len, Size int64 }

func (r Span) end() int64 { return r.Off + r.Len }

// A ReadRequest is a request for bytes of the batch that a handle of next holds.
type ReadRequest struct {
	ID      uint64  // kernel's request id
	FH      uint64  // handle number
	Thread  uint64  // id of the reader, unique among all threads that share the handle
	Version Version // version of the tokens to be read
	Cut     bool    // whether the kernel cut a longer read(2) here and will request the rest later
	PastEnd bool    // whether it extends beyond the end of the file
	Span
}

// Handles assigns handles and batch numbers to requests. It is safe for concurrent use. Lock order:
// mu comes after all locks of package fs.
type Handles struct {
	shared *Shared

	// mu guards the fields below. It also serializes all changes of slots and cursors in shared, so
	// that a worker that dies leaves at most one assignment incomplete.
	mu       sync.Mutex
	free     []uint32                // released slots
	inFlight map[uint64]inFlightRead // reads without a reply, by request id
}

// An inFlightRead is a read and the batch assigned to it.
type inFlightRead struct {
	ReadRequest
	batch uint64
	added bool // whether it delivers bytes for the first time
}

// A handleState is the state of a handle of next. It is computed from the handle's slot and stored
// nowhere, so that a new worker can continue wherever its predecessor died.
//
//	state    read at offset 0    read at another offset  failed read
//	closed   errClosed           errClosed               -
//	empty    takeNumber          takeNumber              -
//	partial  continueBatch (1)   continueBatch           undoRead
//	whole    takeNumber (1)      takeNumber (2)          undoRead
//
// (1) If the read interrupts another thread (isInterrupted), setAside and then takeNumber.
// (2) If the read isRepeated, continueBatch.
//
// takeNumber and continueBatch lead to partial or whole, undoRead also to empty if returnBatch
// returns the number, and Release to closed. Release of a tentative handle that is partial returns
// the number first.
//
// Two kinds of requests read a batch that is not the handle's (otherAssignment) and do not change
// the state: resent requests that were assigned another number before, and the rest of a read(2)
// that was set aside.
type handleState int

const (
	closed  handleState = iota // no open handle has this number
	empty                      // it holds no batch
	partial                    // some bytes of its batch were not delivered yet
	whole                      // every byte of its batch was delivered
)

func (h *Handles) stateOf(fh uint64) handleState {
	s := h.slot(fh)
	switch {
	case s.opens.Load() != fh/MaxHandles || s.sequence.Load() == 0:
		return closed
	case s.flags.Load()&hasBatch == 0:
		return empty
	case slices.Equal(h.rangesOf(fh), []byteRange{{0, int64(s.size.Load())}}):
		return whole
	default:
		return partial
	}
}

// needsNewBatch reports whether a request without an assignment needs another batch than the handle
// holds.
func (s *slot) needsNewBatch(state handleState, r ReadRequest) bool {
	return s.isInterrupted(r) || state == whole && !s.isRepeated(r)
}

// isInterrupted reports whether r begins a batch while another thread is in the middle of a read(2)
// that the kernel cut.
func (s *slot) isInterrupted(r ReadRequest) bool {
	return r.Off == 0 && s.cut.Load() != 0 && s.thread.Load() != r.Thread
}

// isRepeated reports whether r may read bytes of a whole batch again, as C's stdio does: it reads a
// block again if it used only a part of it, and it reads the last block first to learn the size of
// a file.
func (s *slot) isRepeated(r ReadRequest) bool {
	off, from, to := uint64(r.Off), s.lastFrom.Load(), s.lastTo.Load()
	isWithin := from <= off && uint64(r.end()) <= to
	isLastBlock := off == to && r.PastEnd && s.lastThread.Load() == r.Thread
	return off > 0 && (isWithin || isLastBlock)
}

// NewHandles returns the handles in shared, which no other process may use any longer. It completes
// the assignment during which the previous worker died.
func NewHandles(shared *Shared) *Handles {
	h := &Handles{shared: shared, inFlight: map[uint64]inFlightRead{}}
	for i := range shared.slotsUsed.Load() {
		if shared.slots[i].sequence.Load() == 0 {
			h.free = append(h.free, uint32(i))
		}
	}
	if p := &shared.assigning; p.id.Load() != 0 {
		// This was the last assignment. If the cursor is beyond its number, the number was taken.
		if s := h.slot(p.fh.Load()); h.sequenceOf(s).Cursor.Load() > p.number.Load() {
			h.completeTake(s)
		}
		p.id.Store(0)
	}
	return h
}

func (h *Handles) slot(fh uint64) *slot { return &h.shared.slots[fh%MaxHandles] }

func (s *slot) version() Version { return Version(s.flags.Load() >> versionShift) }

func (h *Handles) sequenceOf(s *slot) *SequenceState { return &h.shared.Sequences[s.sequence.Load()] }

// Open opens a handle of a sequence's next for request id of a thread. isTentative means
// O_NONBLOCK: see Release. A resent request gets the same handle again. ok is false if MaxHandles
// are open.
func (h *Handles) Open(sequence int, thread uint32, isTentative bool, id uint64) (fh uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id&Resent != 0 {
		id &^= Resent
		for i := range h.shared.slotsUsed.Load() {
			if s := &h.shared.slots[i]; s.opener.Load() == id && s.sequence.Load() == uint64(sequence) {
				return s.opens.Load()*MaxHandles + i, true
			}
		}
	}
	if used := h.shared.slotsUsed.Load(); len(h.free) == 0 && used < MaxHandles {
		h.shared.slotsUsed.Store(used + 1)
		h.free = append(h.free, uint32(used))
	}
	if len(h.free) == 0 {
		return 0, false
	}
	freeIndex := h.pickSlot(sequence, thread)
	i := uint64(h.free[freeIndex])
	h.free = slices.Delete(h.free, freeIndex, freeIndex+1)
	s := &h.shared.slots[i]
	s.opener.Store(id)
	s.flags.Store(0)
	if isTentative {
		s.flags.Store(tentative)
	}
	h.shared.readers[i].beginReader(sequence, thread)
	opens := s.opens.Add(1)
	failpoint.Hit("open")
	s.sequence.Store(uint64(sequence))
	return opens*MaxHandles + i, true
}

// Release closes a handle. A tentative handle returns the number of a partly delivered batch,
// because programs that look at every file of a directory open next too.
func (h *Handles) Release(fh uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, state := h.slot(fh), h.stateOf(fh)
	if state == closed {
		return
	}
	if s.flags.Load()&tentative != 0 && state == partial {
		h.returnBatch(s, 0)
	}
	s.sequence.Store(0)
	h.free = append(h.free, uint32(fh%MaxHandles))
}

// ErrRanges is the error of a read if too many separate ranges of the batch were read.
var ErrRanges = fmt.Errorf("a batch of next was read in more than %d separate ranges: read it in order, or in larger pieces", maxRanges)

// ErrOutdated is the error of a read in the middle of a batch whose tokens have changed.
var ErrOutdated = fmt.Errorf("the token files changed while they were read: open the file again, or read next from its beginning (%w)", syscall.ESTALE)

// ErrTimedOut is the error of a request that has timed out already. Nobody sees it: the timeout was
// reported to the reader and the log.
var ErrTimedOut = fmt.Errorf("the request timed out (%w)", syscall.ETIMEDOUT)

// errClosed is the error of a resent request for a handle that is closed.
var errClosed = fmt.Errorf("the handle was closed (%w)", syscall.ESTALE)

// AssignBatch returns the number of the batch that a request reads: see handleState. A resent
// request gets the same number again. The caller must call Rollback or Commit afterwards.
//
// Bytes count as delivered when they are requested, because the reader may send its next request
// before the reply is sent. All requests into which the kernel cuts a read(2) get the same batch,
// whatever other threads that share the handle read in the meantime.
//
// The error is ErrOutdated in the middle of a batch of another version, ErrRanges, ErrShared,
// ESTALE if the handle is closed, or ErrTimedOut if cancel is closed. cancel must be closed before
// Rollback undoes a request that timed out.
func (h *Handles) AssignBatch(r ReadRequest, cancel <-chan struct{}) (k uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-cancel:
		return 0, ErrTimedOut
	default:
	}
	k, added, err := h.assignBatch(r)
	if err == nil {
		h.inFlight[r.ID] = inFlightRead{r, k, added}
	}
	return k, err
}

func (h *Handles) assignBatch(r ReadRequest) (k uint64, added bool, err error) {
	s, state := h.slot(r.FH), h.stateOf(r.FH)
	if state == closed {
		return 0, false, errClosed
	}
	earlier := h.findAssignment(r.ID)
	r.ID &^= Resent
	if other, err := h.otherAssignment(s, r, earlier); other != nil {
		return other.number.Load(), false, err
	}
	isAssigned := earlier != nil || s.assignedTo.Load() == r.ID
	if state == empty || !isAssigned && s.needsNewBatch(state, r) {
		err = h.takeNumber(s, state, r)
	} else {
		err = h.continueBatch(s, r)
	}
	if err != nil {
		return 0, false, err
	}
	h.recordRead(s, r)
	added, err = h.addRange(r)
	return s.number.Load(), added, err
}

// continueBatch lets a request read the batch that the handle holds. If the tokens changed, the
// request must read all delivered bytes again, or the error is ErrOutdated.
func (h *Handles) continueBatch(s *slot, r ReadRequest) error {
	if s.version() == r.Version {
		return nil
	}
	for _, old := range h.rangesOf(r.FH) {
		if old.from < r.Off || r.end() < old.to {
			return ErrOutdated
		}
	}
	s.forgetRanges()
	s.flags.Store(s.flags.Load()&(1<<versionShift-1) | uint64(r.Version)<<versionShift)
	return nil
}

// recordRead records a request for the batch that the handle holds.
func (h *Handles) recordRead(s *slot, r ReadRequest) {
	if r.Cut {
		s.thread.Store(r.Thread)
		s.cut.Store(uint64(r.end()))
	} else if s.cut.Load() == uint64(r.Off) || s.thread.Load() == r.Thread {
		s.cut.Store(0)
	}
	s.size.Store(uint64(r.Size))
	failpoint.Hit("count")
	if s.counted.Load() != r.ID {
		s.reads.Add(1)
		s.counted.Store(r.ID)
	}
	h.recordAssignment(r.ID, s.number.Load(), r.Version)
}

// findAssignment returns the earlier assignment of a resent request, or nil.
func (h *Handles) findAssignment(id uint64) *assignment {
	if id&Resent == 0 {
		return nil
	}
	for i := range h.shared.assignments {
		if a := &h.shared.assignments[i]; a.id.Load() == id&^Resent {
			return a
		}
	}
	return nil
}

func (h *Handles) recordAssignment(id, number uint64, version Version) *assignment {
	a := &h.shared.assignments[h.shared.assigned.Add(1)%maxAssignments]
	a.id.Store(0)
	failpoint.Hit("note number")
	a.number.Store(number)
	a.version.Store(uint64(version))
	a.id.Store(id)
	failpoint.Hit("noted")
	return a
}

// takeNumber assigns the number at the cursor to a handle. If the worker dies in the middle,
// NewHandles completes the assignment. The error is ErrShared.
func (h *Handles) takeNumber(s *slot, state handleState, r ReadRequest) error {
	if state != empty && s.isInterrupted(r) {
		rest := ReadRequest{FH: r.FH, Thread: s.thread.Load(), Version: s.version(), Span: Span{Off: int64(s.cut.Load())}}
		if err := h.setAside(rest, s.number.Load()); err != nil {
			return err
		}
	}
	h.applySeek(s.sequence.Load())
	p, cursor := &h.shared.assigning, &h.sequenceOf(s).Cursor
	p.fh.Store(r.FH)
	p.number.Store(cursor.Load())
	p.version.Store(uint64(r.Version))
	failpoint.Hit("want")
	p.id.Store(r.ID)
	failpoint.Hit("ask")
	cursor.Store(p.number.Load() + 1)
	h.completeTake(s)
	failpoint.Hit("taken")
	p.id.Store(0)
	return nil
}

func (h *Handles) completeTake(s *slot) {
	p := &h.shared.assigning
	failpoint.Hit("note")
	s.number.Store(p.number.Load())
	failpoint.Hit("number")
	s.assignedTo.Store(p.id.Load())
	failpoint.Hit("holder")
	s.cut.Store(0)
	s.reads.Store(0)
	s.counted.Store(0)
	s.forgetRanges()
	failpoint.Hit("ranges")
	s.flags.Store(s.flags.Load()&(tentative|hasUnfinished) | hasBatch | p.version.Load()<<versionShift)
}

// Commit records that a request has its reply.
func (h *Handles) Commit(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inFlight, id)
}

// Rollback undoes a read that failed, even if its handler is still running. If no other request has
// read the batch and no later number was taken, the next reader gets the batch.
func (h *Handles) Rollback(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.inFlight[id]; ok {
		delete(h.inFlight, id)
		h.undoRead(r)
	}
}

func (h *Handles) undoRead(r inFlightRead) {
	s, state := h.slot(r.FH), h.stateOf(r.FH)
	holdsOther := s.number.Load() != r.batch // another thread's batch
	if holdsOther && r.Off > 0 {
		h.setAside(r.ReadRequest, r.batch) // so that the thread can retry
	}
	if holdsOther || state == closed || state == empty {
		return
	}
	if r.added || r.ID&Resent != 0 { // an earlier worker may have added the range
		h.removeRange(r.ReadRequest)
	}
	if s.cut.Load() == 0 || s.thread.Load() == r.Thread {
		s.thread.Store(r.Thread)
		s.cut.Store(uint64(r.Off))
	}
	s.counted.Store(0) // the request may be retried with changed tokens
	if s.reads.Add(^uint64(0)) == 0 {
		h.returnBatch(s, r.ID&^Resent)
	}
}

// returnBatch empties a handle and returns its number to the cursor, for the next reader, unless a
// later number was taken or a seek moved the cursor. It also forgets what was assigned to request
// id.
func (h *Handles) returnBatch(s *slot, id uint64) {
	q, number, flags := h.sequenceOf(s), s.number.Load(), s.flags.Load()
	if flags&sought != 0 || q.Cursor.Load() != number+1 {
		return
	}
	for i := range h.shared.assignments {
		if a := &h.shared.assignments[i]; a.id.Load() == s.assignedTo.Load() || a.id.Load() == id {
			a.id.Store(0)
		}
	}
	// The handle is emptied first: if the worker dies here, a number is lost, but never taken
	// twice.
	s.flags.Store(flags &^ hasBatch)
	failpoint.Hit("back")
	q.Cursor.Store(number)
	q.NumbersReturned.Add(1)
}
