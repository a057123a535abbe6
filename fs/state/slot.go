package state

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"batchfs/internal/failpoint"
)

// MaxHandles is the number of handles of next, next.npy and next.safetensors that can be open at
// the same time.
const MaxHandles = 1 << 16

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

// A rangeList holds at most maxRanges ascending byte ranges, with gaps between them.
type rangeList struct {
	n      atomic.Uint64
	inline [maxInline]byteRange // used if n <= maxInline, else Shared.manyRanges
}

type byteRange struct{ from, to int64 }

const (
	maxInline = 3   // most ranges of a list within its slot
	maxRanges = 128 // most ranges of a list
)

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
func (s *slot) needsNewBatch(state handleState, r ReadRequest) bool {
	return s.wouldInterrupt(r) || state == whole && !s.isRepeated(r)
}

// wouldInterrupt reports whether r begins a batch while another thread is in the middle of a
// read(2) that the kernel cut.
func (s *slot) wouldInterrupt(r ReadRequest) bool {
	return r.Off == 0 && s.cutOffset.Load() != 0 && s.cutThread.Load() != r.Thread
}

// isRepeated reports whether r reads bytes of a whole batch again. C's stdio does this: it reads a
// block again after using only a part of it, and it reads the last block first to learn the size
// of a file.
func (s *slot) isRepeated(r ReadRequest) bool {
	off, from, to := uint64(r.Off), s.lastFrom.Load(), s.lastTo.Load()
	isWithin := from <= off && uint64(r.end()) <= to
	isLastBlock := off == to && r.PastEnd && s.lastThread.Load() == r.Thread
	return off > 0 && (isWithin || isLastBlock)
}

// rangesOf returns the delivered ranges of the batch that a handle holds. The result aliases the
// shared memory.
func (h *Handles) rangesOf(fh uint64) []byteRange {
	s := h.slot(fh)
	l := s.currentList.Load()
	return h.list(fh, l, s.lists[l].n.Load())
}

// list returns the memory of n ranges in list l of a handle.
func (h *Handles) list(fh, l, n uint64) []byteRange {
	if n > maxInline {
		return h.shared.manyRanges[fh%MaxHandles][l][:n]
	}
	return h.slot(fh).lists[l].inline[:n]
}

// setRanges replaces the ranges of a handle by at most maxRanges others. If the worker dies in the
// middle, the old ranges stay.
func (h *Handles) setRanges(fh uint64, ranges []byteRange) {
	s, n := h.slot(fh), uint64(len(ranges))
	l := 1 - s.currentList.Load()
	copy(h.list(fh, l, n), ranges)
	s.lists[l].n.Store(n)
	failpoint.Hit("listed")
	s.currentList.Store(l)
	failpoint.Hit("delivered")
}

func (s *slot) forgetRanges() { s.lists[s.currentList.Load()].n.Store(0) }

// withRange appends the delivered ranges of a handle to merged, as they will be after r.
func (h *Handles) withRange(merged []byteRange, r ReadRequest) []byteRange {
	joined := byteRange{r.Off, r.end()}
	for _, o := range h.rangesOf(r.FH) {
		if joined.from <= o.to && o.from <= joined.to {
			joined = byteRange{min(joined.from, o.from), max(joined.to, o.to)}
		} else {
			merged = append(merged, o)
		}
	}
	merged = append(merged, joined)
	slices.SortFunc(merged, func(a, b byteRange) int { return cmp.Compare(a.from, b.from) })
	return merged
}

// addRange records that r is delivered, and reports whether any byte was not delivered before.
// merged is the result of withRange.
func (h *Handles) addRange(r ReadRequest, merged []byteRange) (added bool) {
	if slices.Equal(merged, h.rangesOf(r.FH)) {
		return false
	}
	if s := h.slot(r.FH); merged[0] == (byteRange{0, r.Size}) {
		s.lastFrom.Store(uint64(r.Off))
		s.lastTo.Store(uint64(r.end()))
		s.lastThread.Store(r.Thread)
	}
	h.setRanges(r.FH, merged)
	return true
}

// removeRange records that r is not delivered after all.
func (h *Handles) removeRange(r ReadRequest) {
	left := make([]byteRange, 0, maxInline+1)
	for _, old := range h.rangesOf(r.FH) {
		if before := (byteRange{old.from, min(old.to, r.Off)}); before.from < before.to {
			left = append(left, before)
		}
		if after := (byteRange{max(old.from, r.end()), old.to}); after.from < after.to {
			left = append(left, after)
		}
	}
	// A range that does not fit may be dropped, because the reader can read it again.
	h.setRanges(r.FH, left[:min(len(left), maxRanges)])
}

// An unfinishedRead is a read(2) of a batch that the handle no longer holds, because another thread
// began the next batch before all requests of the read(2) had succeeded.
type unfinishedRead struct {
	fh        atomic.Uint64 // handle; if it is 0 or closed, the element is free
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
func (h *Handles) recordUnfinished(rest ReadRequest, number uint64) error {
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
