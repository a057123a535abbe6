package blocks

import (
	"sync/atomic"
	"time"
)

// A Stream is a reader that reads batches in order. It is safe for concurrent use.
type Stream struct {
	at    atomic.Uint64 // batch that it reads next
	moved atomic.Int64  // time of the last Pass, in nanoseconds since 1970
}

// Pass records which batch the stream reads next. The one before may still be being read.
func (s *Stream) Pass(k uint64) {
	s.at.Store(k)
	s.moved.Store(time.Now().UnixNano())
}

// A Demand is the batch of a stream that needs a block. The zero Demand means soon, and once.
type Demand struct {
	By    *Stream
	Batch uint64
}

// A need is the first and the last batch of a stream that need a block. Some in between may need it too.
type need struct {
	by          *Stream
	first, last uint64
}

// behind is how many batches some threads of a trainer may be behind others.
const behind = 4

// distance returns after how many batches the block is needed. ok is false if it is not needed, or if
// the stream seems to have ended.
func (n need) distance() (batches uint64, ok bool) {
	at := n.by.at.Load()
	return max(n.first, at) - at, at <= n.last && n.by.moves()
}

// isPassed reports whether the stream needed the block until just now.
func (n need) isPassed() bool {
	at := n.by.at.Load()
	return n.last < at && at <= n.last+behind && n.by.moves()
}

func (s *Stream) moves() bool { return time.Now().UnixNano()-s.moved.Load() <= int64(unreadTimeout) }

// next returns after how many batches the first of several streams needs a block. ok is false if none
// does.
func next(needs []need) (batches uint64, ok bool) {
	for _, n := range needs {
		if d, is := n.distance(); is && (!ok || d < batches) {
			batches, ok = d, true
		}
	}
	return batches, ok
}

// later returns the needs that remain after the batches that streams are reading.
func later(needs []need) (list []need) {
	for _, n := range needs {
		if at := n.by.at.Load(); n.last > at && n.by.moves() {
			list = append(list, need{n.by, max(n.first, at+1), n.last})
		}
	}
	return list
}

// add adds a demand for a block to its needs.
func add(needs []need, d Demand) []need {
	if d.By == nil {
		return needs
	}
	for i := range needs {
		if n := &needs[i]; n.by == d.By {
			if _, ok := n.distance(); !ok {
				n.first = d.Batch
			}
			n.first, n.last = min(n.first, d.Batch), max(n.last, d.Batch)
			return needs
		}
	}
	return append(needs, need{d.By, d.Batch, d.Batch})
}
