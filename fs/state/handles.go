package state

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"batchfs/cache/array"
	"batchfs/internal/failpoint"
)

// MaxHandles is the number of handles of next, next.npy and next.safetensors that can be open at
// the same time.
const MaxHandles = 1 << 16

// A FileRange is a range of Len bytes at offset Off in a file of Size bytes.
type FileRange struct{ Off, Len, Size int64 }

func (r FileRange) end() int64 { return r.Off + r.Len }

// A NextRead is a READ of a handle of next.
type NextRead struct {
	ID      uint64  // request id
	FH      uint64  // handle
	Thread  uint64  // id of the reader, unique among the threads that share the handle
	Version Version // version of the tokens to be read
	Cut     bool    // whether the kernel will request the rest of a longer read(2) later
	PastEnd bool    // whether the READ extends beyond the end of the file
	Batches uint64  // batches in the sequence
	FileRange
}

// Handles assigns handles and batch numbers to requests. It is safe for concurrent use. No lock
// is taken while mu is held.
type Handles struct {
	shared *Shared

	// mu guards the fields below. It also serializes changes of slots, and of cursors once their
	// sequence exists, so a worker that dies leaves at most one assignment incomplete.
	mu       sync.Mutex
	free     []uint32                // indexes of released slots
	inFlight map[uint64]inFlightRead // reads without a reply, by request id
}

// An inFlightRead is a READ without a reply.
type inFlightRead struct {
	NextRead
	batch uint64 // batch number
	// takenFor is the id of the request for which the number was taken. After a seek, a handle can
	// take the same number again.
	takenFor uint64
	added    bool // whether its bytes were added to the delivered ranges of the slot
}

// A handleState is the state of a handle of next. It is always computed from the handle's slot, so
// a new worker can continue wherever its predecessor died.
//
//	state    READ at offset 0    READ at another offset  failed READ
//	closed   errClosed           errClosed               -
//	empty    takeNumber          takeNumber              -
//	partial  continueBatch (1)   continueBatch           undoRead
//	whole    takeNumber (1)      takeNumber (2)          undoRead
//
// (1) If another thread is interrupted (wouldInterrupt), recordUnfinished and takeNumber.
// (2) If the READ is a repetition (isRepeated), continueBatch.
//
// takeNumber and continueBatch lead to partial or whole. undoRead leads to partial, or to empty if
// it returns the number, but keeps the state after a repetition. Release leads to closed; a
// tentative handle that is partial returns its number first.
//
// Two kinds of requests read a batch other than the handle's and do not change the state: resent
// requests that were assigned another number before, and the rest of an unfinished read(2). See
// continueOther.
type handleState int

const (
	closed  handleState = iota // no open handle has this number
	empty                      // the handle holds no batch
	partial                    // some bytes of its batch have not been delivered yet
	whole                      // all bytes of its batch have been delivered
)

func (h *Handles) stateOf(fh uint64) handleState {
	s := h.slot(fh)
	switch {
	case s.generation.Load() != fh/MaxHandles || s.sequence.Load() == 0:
		return closed
	case s.flags.Load()&hasBatch == 0:
		return empty
	case slices.Equal(h.rangesOf(fh), []byteRange{{0, int64(s.size.Load())}}):
		return whole
	default:
		return partial
	}
}

// A slot holds the state of one open handle: see handleState.
type slot struct {
	sequence        atomic.Uint64 // sequence number; 0 if the slot is free
	openRequest     atomic.Uint64 // id of the OPEN request
	generation      atomic.Uint64 // handles that have had the slot; part of the handle number
	flags           atomic.Uint64 // see hasBatch
	number          atomic.Uint64 // batch number
	assignedRequest atomic.Uint64 // id of the request for which the number was taken
	size            atomic.Uint64 // file size in bytes
	reads           atomic.Uint64 // requests that read the batch
	lastCounted     atomic.Uint64 // id of the request last counted in reads
	cutThread       atomic.Uint64 // thread in the middle of a read(2), unless cutOffset is 0
	cutOffset       atomic.Uint64 // offset of that read(2)'s next request
	lastFrom        atomic.Uint64 // offset of the request that completed the batch
	lastTo          atomic.Uint64 // end of that request
	lastThread      atomic.Uint64 // thread that sent it
	currentList     atomic.Uint64 // index in lists
	lists           [2]rangeList  // delivered ranges of the batch
}

// These are the bits of slot.flags. The version of the batch's tokens begins at bit versionShift.
const (
	hasBatch      = 1 << iota // the handle holds a batch
	tentative                 // opened with O_NONBLOCK: see Handles.Release
	hasUnfinished             // the handle may have an unfinishedRead
	neverReturn               // do not return the number, because a seek has moved the cursor

	versionShift = 8
)

func (h *Handles) slot(fh uint64) *slot { return &h.shared.slots[fh%MaxHandles] }

func (s *slot) version() Version { return Version(s.flags.Load() >> versionShift) }

// needsNewBatch reports whether a request without an assignment begins another batch.
func (s *slot) needsNewBatch(state handleState, r NextRead) bool {
	return s.wouldInterrupt(r) || state == whole && !s.isRepeated(r)
}

// wouldInterrupt reports whether r begins a batch while another thread is in the middle of a
// read(2) that the kernel cut.
func (s *slot) wouldInterrupt(r NextRead) bool {
	return r.Off == 0 && s.cutOffset.Load() != 0 && s.cutThread.Load() != r.Thread
}

// isRepeated reports whether r reads bytes of a whole batch again. C's stdio does this: it reads a
// block again after using only a part of it, and it reads the last block first to learn the size
// of a file.
func (s *slot) isRepeated(r NextRead) bool {
	off, from, to := uint64(r.Off), s.lastFrom.Load(), s.lastTo.Load()
	isWithin := from <= off && uint64(r.end()) <= to
	isLastBlock := off == to && r.PastEnd && s.lastThread.Load() == r.Thread
	return off > 0 && (isWithin || isLastBlock)
}

// NewHandles returns the handles in shared, which no other worker may use any longer. It completes
// an assignment during which the previous worker died.
func NewHandles(shared *Shared) *Handles {
	h := &Handles{shared: shared, inFlight: map[uint64]inFlightRead{}}
	for i := range shared.slotsUsed.Load() {
		if shared.slots[i].sequence.Load() == 0 {
			h.free = append(h.free, uint32(i))
		}
	}
	if a := &shared.assigning; a.id.Load() != 0 {
		// The worker died before it took another number. If the cursor is beyond this one, it is
		// taken.
		if s := h.slot(a.fh.Load()); h.sequenceOf(s).Cursor.Load() > a.number.Load() {
			h.completeTake(s)
		}
		a.id.Store(0)
	}
	return h
}

func (h *Handles) sequenceOf(s *slot) *SequenceState { return &h.shared.Sequences[s.sequence.Load()] }

// Open opens a handle of a sequence's next. isTentative means O_NONBLOCK: see Release. A resent
// request gets the same handle again. ok is false if MaxHandles are open.
func (h *Handles) Open(sequence int, thread uint32, isTentative bool, id uint64) (fh uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id&Resent != 0 {
		id &^= Resent
		for i := range h.shared.slotsUsed.Load() {
			if s := &h.shared.slots[i]; s.openRequest.Load() == id && s.sequence.Load() == uint64(sequence) {
				return s.generation.Load()*MaxHandles + i, true
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
	s.openRequest.Store(id)
	s.flags.Store(0)
	if isTentative {
		s.flags.Store(tentative)
	}
	h.shared.readers[i].beginReader(sequence, thread)
	generation := s.generation.Add(1)
	failpoint.Hit("open")
	s.sequence.Store(uint64(sequence))
	return generation*MaxHandles + i, true
}

// pickSlot returns the index in free of a slot that this thread had for this sequence before, or
// else the last index. free must not be empty. It checks only the last 64 slots; if more readers
// open next for each batch, their statistics may start anew.
func (h *Handles) pickSlot(sequence int, thread uint32) int {
	last := len(h.free) - 1
	for i := last; i >= max(0, last-63); i-- {
		if r := &h.shared.readers[h.free[i]]; r.Thread.Load() == uint64(thread) && r.Sequence.Load() == uint64(sequence) {
			return i
		}
	}
	return last
}

// Release closes a handle. A tentative handle returns the number of a partly delivered batch,
// because programs that look at every file of a directory look at next, too.
func (h *Handles) Release(fh uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, state := h.slot(fh), h.stateOf(fh)
	if state == closed {
		return
	}
	if s.flags.Load()&tentative != 0 && state == partial {
		h.returnBatch(s)
	}
	s.sequence.Store(0)
	h.free = append(h.free, uint32(fh%MaxHandles))
}

// ErrRanges is the error of a read if too many separate ranges of the batch were read.
var ErrRanges = fmt.Errorf("a batch of next was read in more than %d separate ranges: read it in order, "+
	"or in larger pieces", maxRanges)

// ErrOutdated is the error of a read that continues a batch or file whose tokens have changed.
var ErrOutdated = fmt.Errorf("the token files changed while they were read: open the file again, "+
	"or read next from its beginning (%w)", syscall.ESTALE)

// EndedError returns the error of a read beyond the last batch of a sequence. It matches
// syscall.ENODATA.
func EndedError(batches uint64) error {
	if batches == array.MaxBatches {
		return errLastNumber
	}
	return errUsedUp
}

var (
	errUsedUp = fmt.Errorf("no batch is left, because every source has used up its max_epochs: "+
		"raise it or add a source in the configuration, and run batchfs restart if the split is mounted (%w)", syscall.ENODATA)
	errLastNumber = fmt.Errorf("no batch is left, because batch numbers end at %d: "+
		"begin with an earlier one, for next with batchfs seek (%w)", uint64(array.MaxBatches-1), syscall.ENODATA)
)

// ErrAbandoned is the error of a request that was abandoned. Nobody sees it, because the reader
// already has a reply.
var ErrAbandoned = errors.New("the request was abandoned")

var errClosed = fmt.Errorf("the handle was closed (%w)", syscall.ESTALE)

// AssignBatch returns the number of the batch that a request reads: see handleState. A resent
// request gets the same number again. The caller must call Rollback or Commit afterwards.
//
// Bytes count as delivered when they are requested, because the next request may arrive before the
// reply is sent. All requests into which the kernel cuts a read(2) get the same batch, whatever
// other threads read from the handle in the meantime, provided that each of them reads its batch
// with a single read(2).
//
// The error is ErrOutdated, ErrRanges, ErrShared, EndedError, ESTALE if the handle is closed, or
// ErrAbandoned if cancel is closed, which must happen before an abandoned request's Rollback.
func (h *Handles) AssignBatch(r NextRead, cancel <-chan struct{}) (k uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-cancel:
		return 0, ErrAbandoned
	default:
	}
	k, added, err := h.assignBatch(r)
	if err == nil {
		h.inFlight[r.ID] = inFlightRead{r, k, h.slot(r.FH).assignedRequest.Load(), added}
	}
	return k, err
}

// assignBatch does what AssignBatch does, except that it leaves inFlight alone. added is the value
// of inFlightRead.added.
func (h *Handles) assignBatch(r NextRead) (k uint64, added bool, err error) {
	s, state := h.slot(r.FH), h.stateOf(r.FH)
	if state == closed {
		return 0, false, errClosed
	}
	earlier := h.findAssignment(r.ID)
	r.ID &^= Resent
	if other, err := h.continueOther(s, r, earlier); other != nil {
		return other.number.Load(), false, err
	}
	isAssigned := earlier != nil || s.assignedRequest.Load() == r.ID
	if state == empty || !isAssigned && s.needsNewBatch(state, r) {
		err = h.takeNumber(s, state, r)
	} else {
		err = h.continueBatch(s, r)
	}
	if err != nil {
		return 0, false, err
	}
	ranges := h.withRange(make([]byteRange, 0, maxInline+1), r)
	if len(ranges) > maxRanges {
		return 0, false, ErrRanges
	}
	h.recordRead(s, r, earlier != nil)
	return s.number.Load(), h.addRange(r, ranges), nil
}

// continueBatch lets a request read the batch that the handle holds. If the tokens have changed and
// the request does not read all delivered bytes again, the error is ErrOutdated.
func (h *Handles) continueBatch(s *slot, r NextRead) error {
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

// recordRead records that r reads the slot's batch, and where a cut read(2) continues. isCounted
// says whether an earlier worker has counted the request.
func (h *Handles) recordRead(s *slot, r NextRead, isCounted bool) {
	if r.Cut {
		s.cutThread.Store(r.Thread)
		s.cutOffset.Store(uint64(r.end()))
	} else if s.cutOffset.Load() == uint64(r.Off) || s.cutThread.Load() == r.Thread {
		s.cutOffset.Store(0)
	}
	s.size.Store(uint64(r.Size))
	failpoint.Hit("count")
	// A worker may die after it has set lastCounted and before it records the assignment.
	if !isCounted && s.lastCounted.Load() != r.ID {
		s.reads.Add(1)
		s.lastCounted.Store(r.ID)
	}
	h.recordAssignment(r.ID, s.number.Load(), r.Version)
}

// findAssignment returns what an earlier worker assigned to a resent request, or nil.
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

// continueOther records a request for a batch other than its handle's, and returns its assignment,
// or nil if it is no such request. Such a request either continues an unfinished read(2), or was
// resent, in which case a is its earlier assignment. An unfinished read(2) ends with its last
// request, or with another request of its thread.
func (h *Handles) continueOther(s *slot, r NextRead, a *assignment) (other *assignment, err error) {
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

func (h *Handles) recordAssignment(id, number uint64, version Version) *assignment {
	a := &h.shared.assignments[h.shared.assignmentsRecorded.Add(1)%maxAssignments]
	a.id.Store(0)
	failpoint.Hit("assignment-cleared")
	a.number.Store(number)
	a.version.Store(uint64(version))
	a.id.Store(id)
	failpoint.Hit("assignment-recorded")
	return a
}

// takeNumber assigns the next number to a handle. If the worker dies after it has moved the cursor,
// NewHandles completes the assignment. The error is ErrShared or EndedError.
func (h *Handles) takeNumber(s *slot, state handleState, r NextRead) error {
	if h.sequenceOf(s).Next() >= r.Batches {
		return EndedError(r.Batches)
	}
	if state != empty && s.wouldInterrupt(r) {
		rest := NextRead{FH: r.FH, Thread: s.cutThread.Load(), Version: s.version(), FileRange: FileRange{Off: int64(s.cutOffset.Load())}}
		if err := h.recordUnfinished(rest, s.number.Load()); err != nil {
			return err
		}
	}
	h.applySeek(s.sequence.Load())
	a, cursor := &h.shared.assigning, &h.sequenceOf(s).Cursor
	a.fh.Store(r.FH)
	a.number.Store(cursor.Load())
	a.version.Store(uint64(r.Version))
	failpoint.Hit("take-prepared")
	a.id.Store(r.ID)
	failpoint.Hit("take-announced")
	cursor.Store(a.number.Load() + 1)
	h.completeTake(s)
	failpoint.Hit("taken")
	a.id.Store(0)
	return nil
}

// completeTake copies assigning to the slot. It can be repeated.
func (h *Handles) completeTake(s *slot) {
	a := &h.shared.assigning
	failpoint.Hit("cursor-moved")
	s.number.Store(a.number.Load())
	failpoint.Hit("slot-number")
	s.assignedRequest.Store(a.id.Load())
	failpoint.Hit("slot-request")
	s.cutOffset.Store(0)
	s.reads.Store(0)
	s.lastCounted.Store(0)
	s.forgetRanges()
	failpoint.Hit("ranges")
	s.flags.Store(s.flags.Load()&(tentative|hasUnfinished) | hasBatch | a.version.Load()<<versionShift)
}

// applySeek moves the cursor to the number set by Seek. If the worker dies in the middle, the next
// worker starts again. The caller holds mu.
func (h *Handles) applySeek(sequence uint64) {
	q := &h.shared.Sequences[sequence]
	seek := q.seek.Load()
	if seek == 0 {
		return
	}
	for i := range h.shared.slotsUsed.Load() {
		if s := &h.shared.slots[i]; s.sequence.Load() == sequence {
			s.flags.Or(neverReturn) // keeps Rollback and Release from undoing the seek
		}
	}
	failpoint.Hit("seek")
	q.Cursor.Store(seek - 1)
	failpoint.Hit("sought")
	q.seek.CompareAndSwap(seek, 0) // fails if Seek was called again
}

// Commit records that a request has its reply.
func (h *Handles) Commit(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inFlight, id)
}

// Rollback undoes a failed read, even if its handler is still running. If no other request has read
// the batch and no later number was taken, the next reader gets the batch.
func (h *Handles) Rollback(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.inFlight[id]; ok {
		delete(h.inFlight, id)
		h.undoRead(r)
	} else if id&Resent != 0 {
		h.undoEarlier(id &^ Resent)
	}
}

// undoEarlier undoes what an earlier worker did for a request that fails before this worker assigns
// it a batch: it returns the number that was taken for the request, if no other has read the batch.
func (h *Handles) undoEarlier(id uint64) {
	for i := range h.shared.slotsUsed.Load() {
		s := &h.shared.slots[i]
		if s.sequence.Load() == 0 || s.flags.Load()&hasBatch == 0 || s.assignedRequest.Load() != id {
			continue
		}
		isCounted := h.findAssignment(id|Resent) != nil || s.lastCounted.Load() == id
		h.forgetAssignment(id)
		s.lastCounted.Store(0)
		if isCounted {
			s.reads.Add(^uint64(0))
		}
		if s.reads.Load() == 0 {
			h.returnBatch(s)
		}
	}
}

// undoRead removes a failed read from its slot. If no other request has read the batch, its number
// goes back to the cursor.
func (h *Handles) undoRead(r inFlightRead) {
	s, state := h.slot(r.FH), h.stateOf(r.FH)
	holdsOther := s.number.Load() != r.batch || s.assignedRequest.Load() != r.takenFor
	if holdsOther && r.Off > 0 {
		h.recordUnfinished(r.NextRead, r.batch) // lets the thread retry
	}
	if holdsOther || state == closed || state == empty {
		return
	}
	if r.added || r.ID&Resent != 0 { // an earlier worker may have added the range
		h.removeRange(r.NextRead)
	}
	if s.cutOffset.Load() == 0 || s.cutThread.Load() == r.Thread {
		s.cutThread.Store(r.Thread)
		s.cutOffset.Store(uint64(r.Off))
	}
	h.forgetAssignment(r.ID &^ Resent)
	s.lastCounted.Store(0) // the request may be retried with changed tokens
	if s.reads.Add(^uint64(0)) == 0 {
		h.returnBatch(s)
	}
}

// forgetAssignment forgets what was assigned to a request: if it is resent, it is counted again.
func (h *Handles) forgetAssignment(id uint64) {
	for i := range h.shared.assignments {
		h.shared.assignments[i].id.CompareAndSwap(id, 0)
	}
}

// returnBatch empties a handle and returns its number to the cursor, unless a later number was
// taken or a seek moved the cursor. It also forgets the assignment of s.assignedRequest.
func (h *Handles) returnBatch(s *slot) {
	q, number, flags := h.sequenceOf(s), s.number.Load(), s.flags.Load()
	if flags&neverReturn != 0 || q.Cursor.Load() != number+1 {
		return
	}
	h.forgetAssignment(s.assignedRequest.Load())
	// If the worker dies after emptying the handle, a number is lost, but none is taken twice.
	s.flags.Store(flags &^ hasBatch)
	failpoint.Hit("back")
	q.Cursor.Store(number)
	q.NumbersReturned.Add(1)
}
