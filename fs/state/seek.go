package state

import "batchfs/internal/failpoint"

// Next is the number that the next reader of next takes.
func (e *SequenceState) Next() uint64 {
	if seek := e.seek.Load(); seek != 0 {
		return seek - 1
	}
	return e.Cursor.Load()
}

// Seek sets the number that the next reader of next takes, and returns what it was. Readers keep the batches that they hold. Any
// process may call it, whether a worker is alive or not: the worker that assigns the next number moves the cursor first.
func (e *SequenceState) Seek(number uint64) (was uint64) {
	was = e.Next()
	e.seek.Store(number + 1)
	return was
}

// applySeek moves a sequence's cursor to where a seek has set it. If the worker dies in it, the next one repeats it. The caller holds mu.
func (h *Handles) applySeek(sequence uint64) {
	e := &h.shared.Sequences[sequence]
	seek := e.seek.Load()
	if seek == 0 {
		return
	}
	for i := range h.shared.slotsUsed.Load() {
		if s := &h.shared.slots[i]; s.sequence.Load() == sequence {
			s.flags.Or(sought) // or returning its batch could undo the seek
		}
	}
	failpoint.Hit("seek")
	e.Cursor.Store(seek - 1)
	failpoint.Hit("sought")
	e.seek.CompareAndSwap(seek, 0) // unless there is a later one
}
