package state

import (
	"math/bits"
	"sync/atomic"
	"time"

	"batchfs/internal/clock"
)

// WaitHistogram counts how long requests waited, from when a worker read them until it had
// answered.
type WaitHistogram struct {
	Sum     atomic.Int64                       // nanoseconds
	Buckets [len(WaitBounds) + 1]atomic.Uint64 // waits below each of WaitBounds, and all others
}

// WaitBounds are 2 µs, 4 µs, … 2.1 s.
var WaitBounds = func() (bounds [21]time.Duration) {
	for i := range bounds {
		bounds[i] = 2 * time.Microsecond << i
	}
	return bounds
}()

func (w *WaitHistogram) record(d time.Duration) {
	w.Sum.Add(int64(d))
	w.Buckets[min(bits.Len64(uint64(d)/2000), len(w.Buckets)-1)].Add(1)
}

// ReaderStats has the statistics of a thread that reads next: how long its requests waited, from the second on, and how long it took between them. It has the slot of
// its handle, and keeps it when it opens next again.
type ReaderStats struct {
	Sequence atomic.Uint64 // its number; 0: nothing has read here
	Thread   atomic.Uint64 // its id
	Waited   atomic.Int64  // nanoseconds, until they were answered
	Gap      atomic.Int64  // nanoseconds from an answer to the next request
	since    atomic.Int64  // when its last request was answered, in clock.Now time; negative: when its request began that has no answer
}

// Since is how long the reader has waited for an answer, or how long ago it got the last one.
func (r *ReaderStats) Since() (waits bool, d time.Duration) {
	since := r.since.Load()
	return since < 0, time.Duration(clock.Now() - max(since, -since))
}

// Readers are the readers of all slots that were ever used. Where there is none, its Sequence is 0.
func (s *Shared) Readers() []ReaderStats { return s.readers[:s.slotsUsed.Load()] }

// A ReadTimer is a request for bytes of next. The zero value is of another file.
type ReadTimer struct {
	reader   *ReaderStats
	sequence *SequenceState
	began    int64
	again    bool // the reader has read before
}

// BeginRead records that request id of a thread begins, which has already waited for some time. A
// request that is sent again began when it was sent first.
func (s *Shared) BeginRead(sequence int, fh uint64, thread uint32, id uint64, waited time.Duration) ReadTimer {
	began := clock.Now() - int64(waited)
	r := ReadTimer{reader: &s.readers[fh%MaxHandles], sequence: &s.Sequences[sequence], began: began}
	if r.reader.Thread.Load() != uint64(thread) {
		r.reader.Thread.Store(uint64(thread))
	}
	switch since := r.reader.since.Swap(-r.began); {
	case since > 0:
		r.again = true
		gap := max(began-since, 0) // a thread that shares the handle may have been answered meanwhile
		r.reader.Gap.Add(gap)
		r.sequence.Gap.Add(gap)
	case since < 0 && id&Resent != 0:
		r.began, r.again = -since, true
		r.reader.since.Store(since)
	}
	return r
}

// End notes that the request was answered.
func (r ReadTimer) End() {
	if r.reader == nil {
		return
	}
	now := clock.Now()
	r.reader.since.Store(now)
	if r.again {
		r.reader.Waited.Add(now - r.began)
		r.sequence.Waited.Add(now - r.began)
	}
	r.sequence.Waits.record(time.Duration(now - r.began))
}

// Discard notes that the request was answered with an error before its reply was ready. It does not
// count the time that the reader waited.
func (r ReadTimer) Discard() {
	if r.reader != nil {
		r.reader.since.CompareAndSwap(-r.began, clock.Now()) // unless the reader's next request has begun
	}
}

// EndFailedRead records that a request for a handle of next was answered with an error.
func (s *Shared) EndFailedRead(fh uint64) { s.readers[fh%MaxHandles].since.Store(clock.Now()) }

// pickSlot returns where in free, which is not empty, a slot stands that the same thread had for the same sequence, or else the last one.
// It looks at a few: if more readers than that open next for each batch, they may be taken for each other.
func (h *Handles) pickSlot(sequence int, thread uint32) int {
	last := len(h.free) - 1
	for i := last; i >= max(0, last-63); i-- {
		if r := &h.shared.readers[h.free[i]]; r.Thread.Load() == uint64(thread) && r.Sequence.Load() == uint64(sequence) {
			return i
		}
	}
	return last
}

// beginReader has a reader count from 0 unless it is the one that had its slot before.
func (r *ReaderStats) beginReader(sequence int, thread uint32) {
	if r.Sequence.Load() == uint64(sequence) && r.Thread.Load() == uint64(thread) {
		return
	}
	r.Sequence.Store(0)
	r.Waited.Store(0)
	r.Gap.Store(0)
	r.since.Store(0)
	r.Thread.Store(uint64(thread))
	r.Sequence.Store(uint64(sequence))
}
