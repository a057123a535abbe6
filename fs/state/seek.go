package state

import "batchfs/internal/failpoint"

// Next returns the batch number that the next reader of next will take.
func (q *SequenceState) Next() uint64 {
	if seek := q.seek.Load(); seek != 0 {
		return seek - 1
	}
	return q.Cursor.Load()
}

// Seek sets the number that Next returns, and returns the previous one. Readers keep the batches
// that they hold. Any process may call Seek, even if no worker is alive, because the worker moves
// the cursor before it assigns the next number.
func (q *SequenceState) Seek(number uint64) (previous uint64) {
	previous = q.Next()
	q.seek.Store(number + 1)
	return previous
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
