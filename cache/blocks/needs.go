package blocks

import (
	"sync/atomic"
	"time"
)

// A Stream is a reader that reads batches in order, and whose next ones are known.
type Stream struct {
	at    atomic.Uint64 // the batch that it is at
	moved atomic.Int64  // when it got there, in nanoseconds since 1970
}

// Pass says which batch the stream reads next. The one before is perhaps being read still.
func (s *Stream) Pass(k uint64) {
	s.at.Store(k)
	s.moved.Store(time.Now().UnixNano())
}

// A Demand says when a block is needed: for a batch of a stream. The zero Demand is soon, and once.
type Demand struct {
	By    *Stream
	Batch uint64
}

// A need is the batches of a stream that need a block: the first, the last, and some between.
type need struct {
	by          *Stream
	first, last uint64
}

// Some threads of a trainer may be that many batches behind others.
const behind = 4

// distance is after how many batches the block is needed. ok is false if it is not, or if the stream seems to have ended.
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

// next is after how many batches a block is needed next by any of its streams; ok is false if it is by none.
func next(needs []need) (batches uint64, ok bool) {
	for _, n := range needs {
		if d, is := n.distance(); is && (!ok || d < batches) {
			batches, ok = d, true
		}
	}
	return batches, ok
}

// later are the needs of batches behind those that streams are at.
func later(needs []need) (list []need) {
	for _, n := range needs {
		if at := n.by.at.Load(); n.last > at && n.by.moves() {
			list = append(list, need{n.by, max(n.first, at+1), n.last})
		}
	}
	return list
}

// add notes when a block is needed.
func add(needs []need, t Demand) []need {
	if t.By == nil {
		return needs
	}
	for i := range needs {
		if n := &needs[i]; n.by == t.By {
			if _, ok := n.distance(); !ok {
				n.first = t.Batch
			}
			n.first, n.last = min(n.first, t.Batch), max(n.last, t.Batch)
			return needs
		}
	}
	return append(needs, need{t.By, t.Batch, t.Batch})
}
