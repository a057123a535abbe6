package state

import (
	"math/bits"
	"sync/atomic"
	"time"

	"batchfs/internal/clock"
)

// WaitHistogram counts how long requests waited for their replies. It is safe for concurrent use.
type WaitHistogram struct {
	Sum atomic.Int64 // nanoseconds

	// Buckets counts waits by the first of WaitBounds above them. The last element has the rest.
	Buckets [len(WaitBounds) + 1]atomic.Uint64
}

// WaitBounds are the upper bounds of the buckets: 2 µs, 4 µs, … 2.1 s.
var WaitBounds = func() (bounds [21]time.Duration) {
	for i := range bounds {
		bounds[i] = 2 * time.Microsecond << i
	}
	return bounds
}()

func (w *WaitHistogram) record(d time.Duration) {
	w.Sum.Add(int64(d))
	w.Buckets[min(bits.Len64(uint64(d)/2000), len(w.Buckets)-1)].Add(1) // the first bound is 2 µs
}

// A ReaderStats measures a thread that reads next, except for its first request. It belongs to the
// slot of the thread's handle. When a thread opens next again, it gets the same slot if possible
// (pickSlot). See Shared for its concurrent use.
type ReaderStats struct {
	Sequence atomic.Uint64 // sequence number; 0 if there was no reader
	Thread   atomic.Uint64 // thread id
	Waited   atomic.Int64  // nanoseconds from requests to their replies
	Gap      atomic.Int64  // nanoseconds from replies to the next requests; 0 until the second one

	// signedSince is the clock.Now of the last reply or, while the reader waits for one, the
	// negated clock.Now at which its request began.
	signedSince atomic.Int64
}

// Since reports whether the reader is waiting for a reply. If so, d is how long it has waited;
// otherwise, d is the time since its last reply.
func (r *ReaderStats) Since() (waits bool, d time.Duration) {
	signedSince := r.signedSince.Load()
	return signedSince < 0, time.Duration(clock.Now() - max(signedSince, -signedSince))
}

// HasRead reports whether the reader has sent a request. If it has not, the result of Since is
// meaningless.
func (r *ReaderStats) HasRead() bool { return r.signedSince.Load() != 0 }

// Readers returns the readers of all slots ever used. Elements with Sequence 0 are unused.
func (s *Shared) Readers() []ReaderStats { return s.readers[:min(s.slotsUsed.Load(), MaxHandles)] }

// beginReader resets the statistics unless they are this reader's.
func (r *ReaderStats) beginReader(sequence int, thread uint32) {
	if r.Sequence.Load() == uint64(sequence) && r.Thread.Load() == uint64(thread) {
		return
	}
	r.Sequence.Store(0)
	r.Waited.Store(0)
	r.Gap.Store(0)
	r.signedSince.Store(0)
	r.Thread.Store(uint64(thread))
	r.Sequence.Store(uint64(sequence))
}

// A ReadTimer measures one request for bytes of next. The zero value does nothing. It belongs to
// one goroutine.
type ReadTimer struct {
	reader        *ReaderStats
	sequence      *SequenceState
	began         int64
	hasReadBefore bool
}

// BeginRead starts the timer of a request. waited is how long it has waited for admission. A resent
// request is timed from when it was first sent.
func (s *Shared) BeginRead(sequence int, fh uint64, thread uint32, id uint64, waited time.Duration) ReadTimer {
	began := clock.Now() - int64(waited)
	r := ReadTimer{reader: &s.readers[fh%MaxHandles], sequence: &s.Sequences[sequence], began: began}
	if r.reader.Thread.Load() != uint64(thread) {
		r.reader.Thread.Store(uint64(thread))
	}
	switch signedSince := r.reader.signedSince.Swap(-r.began); {
	case signedSince > 0:
		r.hasReadBefore = true
		// Gap must become positive, even if another thread on the handle had a later reply.
		gap := max(began-signedSince, 1)
		r.reader.Gap.Add(gap)
		r.sequence.Gap.Add(gap)
	case signedSince < 0 && id&Resent != 0:
		r.began, r.hasReadBefore = -signedSince, r.reader.Gap.Load() > 0
		r.reader.signedSince.Store(signedSince)
	}
	return r
}

// End records that the reply was sent.
func (r ReadTimer) End() {
	if r.reader == nil {
		return
	}
	now := clock.Now()
	r.reader.signedSince.Store(now)
	if r.hasReadBefore {
		r.reader.Waited.Add(now - r.began)
		r.sequence.Waited.Add(now - r.began)
	}
	r.sequence.ReplyTimes.record(time.Duration(now - r.began))
}

// Discard ends the timer of a request that fails, without counting the wait.
func (r ReadTimer) Discard() {
	if r.reader != nil {
		r.reader.signedSince.CompareAndSwap(-r.began, clock.Now()) // fails if a newer one has begun
	}
}
