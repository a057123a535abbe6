package blocks

import (
	"sync/atomic"

	"batchfs/internal/clock"
)

// A Stream is a reader that reads batches in order. It is safe for concurrent use.
type Stream struct {
	batch       atomic.Uint64 // next batch to be read
	lastAdvance atomic.Int64  // clock.Now at the last Advance
}

// Advance records that the stream reads batch k next. The read of batch k-1 may not have finished.
func (s *Stream) Advance(k uint64) {
	s.batch.Store(k)
	s.lastAdvance.Store(clock.Now())
}

// A Demand says that batch Batch of stream By needs a block. The zero Demand says that a single
// read needs it soon.
type Demand struct {
	By    *Stream
	Batch uint64
}

// A need records that a stream needs a block for batches firstBatch and lastBatch, and perhaps for
// batches between them.
type need struct {
	stream                *Stream
	firstBatch, lastBatch uint64
}

// justPassed is for how many batches a block counts as just passed. In this time, it serves threads
// of a reader that are behind another.
const justPassed = 4

// distance returns how many batches come before the next one that needs the block. ok is false if
// no further batch needs it, or if the stream seems to have ended.
func (n need) distance() (batches uint64, ok bool) {
	batch := n.stream.batch.Load()
	return max(n.firstBatch, batch) - batch, batch <= n.lastBatch && n.stream.isActive()
}

// isPassed reports whether the stream has just passed the last batch that needs the block.
func (n need) isPassed() bool {
	batch := n.stream.batch.Load()
	return n.lastBatch < batch && batch <= n.lastBatch+justPassed && n.stream.isActive()
}

func (s *Stream) isActive() bool {
	return clock.Now()-s.lastAdvance.Load() <= int64(unreadTimeout)
}

// nearestNeed returns the least distance of needs. ok is false if none has one.
func nearestNeed(needs []need) (batches uint64, ok bool) {
	for _, n := range needs {
		if d, needed := n.distance(); needed && (!ok || d < batches) {
			batches, ok = d, true
		}
	}
	return batches, ok
}

// remainingNeeds returns what is left of needs after the current batches of the streams.
func remainingNeeds(needs []need) (list []need) {
	for _, n := range needs {
		if batch := n.stream.batch.Load(); n.lastBatch > batch && n.stream.isActive() {
			list = append(list, need{n.stream, max(n.firstBatch, batch+1), n.lastBatch})
		}
	}
	return list
}

// addDemand adds a batch to the need of its stream. A Demand without a stream changes nothing.
func addDemand(needs []need, d Demand) []need {
	if d.By == nil {
		return needs
	}
	for i := range needs {
		if n := &needs[i]; n.stream == d.By {
			if _, ok := n.distance(); !ok {
				n.firstBatch = d.Batch
			}
			n.firstBatch, n.lastBatch = min(n.firstBatch, d.Batch), max(n.lastBatch, d.Batch)
			return needs
		}
	}
	return append(needs, need{d.By, d.Batch, d.Batch})
}
