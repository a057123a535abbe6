package guard

import (
	"sync"
	"time"
)

// failures are the reads for the page cache that failed within the last second. The kernel may repeat one for ever, as for a
// mapping with MAP_POPULATE: without a pause that takes up a processor.
//
// Lock order: mu is taken last.
type failures struct {
	mu   sync.Mutex
	last map[failure]failed // guarded by mu
}

type failure struct {
	node uint64
	off  uint64
}

type failed struct {
	at    time.Time
	pause time.Duration // before its next answer
}

const (
	firstPause = time.Millisecond
	maxPause   = 100 * time.Millisecond
	// So many failures are remembered.
	maxFailures = 1 << 10
)

// pause notes that a read failed. If it failed a moment ago too, pause waits, longer each time.
func (f *failures) pause(node, off uint64) { time.Sleep(f.note(failure{node, off}, time.Now())) }

// note returns how long to wait before the answer.
func (f *failures) note(this failure, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil || len(f.last) == maxFailures {
		f.last = map[failure]failed{}
	}
	was, again := f.last[this]
	if !again || now.Sub(was.at) > time.Second {
		f.last[this] = failed{now, firstPause}
		return 0
	}
	f.last[this] = failed{now, min(2*was.pause, maxPause)}
	return was.pause
}
