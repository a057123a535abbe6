package state

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"batchfs/internal/failpoint"
)

// A Span is the part of a file that a request reads: Len bytes from Off on, of a file of Size bytes.
type Span struct{ Off, Len, Size int64 }

func (r Span) end() int64 { return r.Off + r.Len }

// A Read is a request for a part of the batch that a handle of next holds.
type Read struct {
	ID      uint64  // of the request
	FH      uint64  // the handle
	Thread  uint64  // tells the threads of all processes that share the handle apart
	Version Version // of the tokens that will be read
	Cut     bool    // the kernel cut a longer read(2) here, and sends the rest as another request when this one is answered
	PastEnd bool    // it asks for more than the rest of the file
	Span
}

// Handles assigns handles and batch numbers to requests. It is safe for concurrent use. Its lock is taken last, after every lock of fs.
type Handles struct {
	shared  *Shared
	mu      sync.Mutex  // serialises slots and numbers: at most one number is half assigned
	free    []uint32    // slots that were used and are not now; guarded by mu
	scratch []byteRange // guarded by mu

	underWay []underWay // reads that have no answer yet, no more than fs lets use token files at a time; guarded by mu
}

// An underWay is a read and what it was assigned.
type underWay struct {
	Read
	number uint64
	added  bool // it delivers bytes that were not delivered before
}

// NewHandles continues with what is in the shared memory, in which no other process works any more.
func NewHandles(shared *Shared) *Handles {
	h := &Handles{shared: shared}
	for i := range shared.slotsUsed.Load() {
		if shared.slots[i].sequence.Load() == 0 {
			h.free = append(h.free, uint32(i))
		}
	}
	if p := &shared.assigning; p.id.Load() != 0 {
		// No other number was assigned since, so this one was assigned exactly if the cursor has passed it.
		if s := h.slot(p.fh.Load()); h.cursor(s).Load() > p.number.Load() {
			h.finish(s)
		}
		p.id.Store(0)
	}
	return h
}

func (h *Handles) slot(fh uint64) *slot { return &h.shared.slots[fh%MaxHandles] }

func (h *Handles) cursor(s *slot) *atomic.Uint64 {
	return &h.shared.Sequences[s.sequence.Load()].Cursor
}

// Open opens a handle of a sequence's next, for request id of a thread; sent again, the request gets the same one. ok is false when MaxHandles are open.
func (h *Handles) Open(sequence int, thread uint32, isTentative bool, id uint64) (fh uint64, ok bool) {
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
		at := h.pickSlot(sequence, thread)
		i = uint64(h.free[at])
		h.free[at], h.free = h.free[n-1], h.free[:n-1]
	case shared.slotsUsed.Load() < MaxHandles:
		i = shared.slotsUsed.Add(1) - 1
	default:
		return 0, false
	}
	s := &shared.slots[i]
	s.opener.Store(id)
	s.flags.Store(0)
	if isTentative {
		s.flags.Store(tentative)
	}
	s.number.Store(0)
	s.holder.Store(0)
	s.cut.Store(0)
	s.counted.Store(0)
	s.forgetRanges()
	shared.readers[i].beginReader(sequence, thread)
	opens := s.opens.Add(1)
	failpoint.Hit("open")
	s.sequence.Store(uint64(sequence))
	return opens*MaxHandles + i, true
}

// Release closes a handle, once. A tentative one gives back the number of a batch that was not delivered whole: programs that look at
// every file in a directory open next too.
func (h *Handles) Release(fh uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slot(fh)
	if s.isFree(fh) {
		return
	}
	flags := s.flags.Load()
	if flags&hasUnfinished != 0 {
		for i := range h.shared.unfinished {
			h.shared.unfinished[i].fh.CompareAndSwap(fh, 0)
		}
	}
	if flags&(holds|tentative|passed) == holds|tentative && !h.isWhole(fh) {
		s.flags.Store(flags &^ holds) // first: a number may be lost here, but never be given back twice
		failpoint.Hit("release")
		h.shared.Sequences[s.sequence.Load()].giveBack(s.number.Load())
	}
	s.sequence.Store(0)
	h.free = append(h.free, uint32(fh%MaxHandles))
}

// isFree says whether no open handle has number fh, whose slot is s.
func (s *slot) isFree(fh uint64) bool {
	return s.opens.Load() != fh/MaxHandles || s.sequence.Load() == 0
}

// ErrRanges is the error of a reader that reads a batch in too many ranges.
var ErrRanges = fmt.Errorf("a batch of next was read in more than %d ranges that do not touch: read it in order, or in larger reads", maxRanges)

// ErrOutdated is the error of a reader that is in the middle of a batch whose tokens changed.
var ErrOutdated = fmt.Errorf("the token files changed while they were read: open the file again, next from its beginning (%w)", syscall.ESTALE)

// ErrLate is the error of a request that has an answer already. The log has another error for it.
var ErrLate = fmt.Errorf("too late (%w)", syscall.ETIMEDOUT)

// AssignBatch returns which batch a request reads: the batch that the handle holds, or the cursor's next one at the handle's
// first read, and once each byte of the handle's batch was delivered. Sent again, the request gets the number it got first. GiveBack or
// Answered must follow.
//
// Bytes count as delivered when they are requested, because the reader may send its next request before the answer is sent. The
// requests into which the kernel cuts a long read(2) get one batch, whatever other threads that share the handle read meanwhile.
//
// The error is ErrOutdated in the middle of a batch of another version, ErrRanges, ESTALE for a handle that was closed, or ErrLate once
// late is closed, upon which GiveBack is called.
func (h *Handles) AssignBatch(r Read, late <-chan struct{}) (k uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-late:
		return 0, ErrLate
	default:
	}
	k, added, err := h.assignBatch(r)
	if err == nil {
		h.underWay = append(h.underWay, underWay{r, k, added})
	}
	return k, err
}

func (h *Handles) assignBatch(r Read) (k uint64, added bool, err error) {
	s := h.slot(r.FH)
	if s.isFree(r.FH) {
		return 0, false, fmt.Errorf("the handle was closed (%w)", syscall.ESTALE) // sent again, although it was answered long ago
	}
	isResent := r.ID&Resent != 0
	r.ID &^= Resent
	another, isHolders, err := h.findAssigned(s, r, isResent)
	if err != nil {
		return 0, false, err
	}
	if another != nil {
		return another.number.Load(), false, nil
	}
	if err := h.holdBatch(s, r, isHolders); err != nil {
		return 0, false, err
	}
	if r.Cut {
		s.thread.Store(r.Thread)
		s.cut.Store(uint64(r.end()))
	} else if s.cut.Load() == uint64(r.Off) || s.thread.Load() == r.Thread {
		s.cut.Store(0)
	}
	k = s.number.Load()
	s.size.Store(uint64(r.Size))
	failpoint.Hit("count")
	if s.counted.Load() != r.ID {
		s.reads.Add(1)
		s.counted.Store(r.ID)
	}
	if s.holder.Load() != r.ID { // a holder is noted already
		h.note(r.ID, k, r.Version)
	}
	added, err = h.deliver(r)
	return k, added, err
}

// findAssigned returns the batch of a request that was sent again, or of its thread's unfinished read, unless the slot holds it. Otherwise
// isHolders says whether the request has read the slot's batch before.
func (h *Handles) findAssigned(s *slot, r Read, isResent bool) (another *assignment, isHolders bool, err error) {
	isHolders = s.holder.Load() == r.ID
	if isResent {
		another = h.earlier(r.ID)
	}
	if another != nil && another.number.Load() == s.number.Load() {
		isHolders, another = true, nil
	}
	var u *unfinished
	if s.flags.Load()&hasUnfinished != 0 {
		u = h.findUnfinished(r.FH, r.Thread)
	}
	if u != nil && another == nil && r.Off > 0 && r.Off == int64(u.cut.Load()) {
		another = h.note(r.ID, u.number.Load(), Version(u.version.Load()))
	}
	if another != nil && r.Off > 0 && another.version.Load() != uint64(r.Version) {
		return nil, false, ErrOutdated
	}
	if u != nil {
		u.advance(r, another)
	}
	return another, isHolders, nil
}

func (h *Handles) holdBatch(s *slot, r Read, isHolders bool) error {
	flags := s.flags.Load()
	isAnothers := r.Off == 0 && s.cut.Load() != 0 && s.thread.Load() != r.Thread
	isOver := h.isWhole(r.FH) && !s.isAgain(r)
	switch {
	case flags&holds == 0, !isHolders && (isAnothers || isOver):
		if flags&holds != 0 && isAnothers {
			h.noteUnfinished(s.thread.Load(), int64(s.cut.Load()), r.FH, s.number.Load(), Version(flags>>versionShift))
		}
		h.assign(s, r)
	case flags>>versionShift == uint64(r.Version):
	case !h.mayBeginAgain(r):
		return ErrOutdated
	default:
		s.forgetRanges()
		s.flags.Store(flags&(tentative|hasUnfinished|passed) | holds | uint64(r.Version)<<versionShift)
	}
	return nil
}

// mayBeginAgain says whether r reads all that was delivered of the batch, of other tokens.
func (h *Handles) mayBeginAgain(r Read) bool {
	ranges := h.ranges(r.FH)
	return len(ranges) == 0 || len(ranges) == 1 && r.Off <= ranges[0].from && ranges[0].to <= r.end()
}

// isAgain says whether r may read a batch that was delivered. C's stdio reads blocks: it may need a part of one, and read the block
// again later. And to learn the size of a file, it reads the last block before it reads all blocks.
func (s *slot) isAgain(r Read) bool {
	off, from, to := uint64(r.Off), s.lastFrom.Load(), s.lastTo.Load()
	return off > 0 && (from <= off && uint64(r.end()) <= to || off == to && r.PastEnd && s.lastThread.Load() == r.Thread)
}

func (h *Handles) earlier(id uint64) *assignment {
	for i := range h.shared.assignments {
		if a := &h.shared.assignments[i]; a.id.Load() == id {
			return a
		}
	}
	return nil
}

func (h *Handles) note(id, number uint64, version Version) *assignment {
	a := &h.shared.assignments[h.shared.assigned.Add(1)%maxAssignments]
	a.id.Store(0)
	failpoint.Hit("note number")
	a.number.Store(number)
	a.version.Store(uint64(version))
	a.id.Store(id)
	failpoint.Hit("noted")
	return a
}

// assign gives slot s the cursor's number. NewHandles completes it if the worker dies.
func (h *Handles) assign(s *slot, r Read) {
	h.applySeek(s.sequence.Load())
	p, cursor := &h.shared.assigning, h.cursor(s)
	p.fh.Store(r.FH)
	p.number.Store(cursor.Load())
	p.version.Store(uint64(r.Version))
	failpoint.Hit("want")
	p.id.Store(r.ID)
	failpoint.Hit("ask")
	cursor.Store(p.number.Load() + 1)
	h.finish(s)
	failpoint.Hit("taken")
	p.id.Store(0)
}

func (h *Handles) finish(s *slot) {
	p := &h.shared.assigning
	id, number, version := p.id.Load(), p.number.Load(), p.version.Load()
	failpoint.Hit("note")
	h.note(id, number, Version(version))
	s.number.Store(number)
	failpoint.Hit("number")
	s.holder.Store(id)
	failpoint.Hit("holder")
	s.cut.Store(0)
	s.reads.Store(0)
	s.forgetRanges()
	failpoint.Hit("ranges")
	s.flags.Store(s.flags.Load()&(tentative|hasUnfinished) | holds | version<<versionShift)
}

// Answered notes that a request was answered.
func (h *Handles) Answered(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endRead(id)
}

// GiveBack notes that a request has failed, even if its handler still runs: what it added was not delivered. A batch that no other request
// read goes to the next reader instead, unless another number was taken meanwhile.
func (h *Handles) GiveBack(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.endRead(id); ok {
		h.giveBack(r.Read, r.number, r.added)
	}
}

// endRead removes a read that is under way. The caller holds mu.
func (h *Handles) endRead(id uint64) (r underWay, ok bool) {
	i := slices.IndexFunc(h.underWay, func(r underWay) bool { return r.ID == id })
	if i < 0 {
		return r, false
	}
	r, last := h.underWay[i], len(h.underWay)-1
	h.underWay[i], h.underWay = h.underWay[last], h.underWay[:last]
	return r, true
}

func (h *Handles) giveBack(r Read, k uint64, added bool) {
	s := h.slot(r.FH)
	switch {
	case s.isFree(r.FH):
		return
	case s.number.Load() != k: // another thread has the handle now
		if r.Off > 0 {
			h.noteUnfinished(r.Thread, r.Off, r.FH, k, r.Version) // the thread may try again
		}
		return
	case s.flags.Load()&holds == 0:
		return
	}
	if added || r.ID&Resent != 0 { // an earlier worker may have added it
		h.takeBack(r)
	}
	if r.Off > 0 && (s.cut.Load() == 0 || s.thread.Load() == r.Thread) {
		s.thread.Store(r.Thread)
		s.cut.Store(uint64(r.Off))
	} else if s.thread.Load() == r.Thread {
		s.cut.Store(0)
	}
	s.counted.Store(0) // the same request may try again with other tokens
	if q := &h.shared.Sequences[s.sequence.Load()]; s.reads.Add(^uint64(0)) == 0 && q.Cursor.Load() == k+1 && s.flags.Load()&passed == 0 {
		for i := range h.shared.assignments { // or the same request, sent again, would get it
			if a := &h.shared.assignments[i]; a.id.Load() == s.holder.Load() || a.id.Load() == r.ID&^Resent {
				a.id.Store(0)
			}
		}
		s.flags.Store(s.flags.Load() &^ holds) // first: a number may be lost here, but never be held twice
		failpoint.Hit("back")
		q.giveBack(k)
	}
}

// giveBack lowers the cursor to a number that no handle holds, unless a later one was taken.
func (e *Entry) giveBack(number uint64) {
	if e.Cursor.CompareAndSwap(number+1, number) {
		e.GivenBack.Add(1)
	}
}
