package state

import "sync/atomic"

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
