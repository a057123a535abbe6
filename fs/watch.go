package fs

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A watch answers the requests whose handlers do not, because what they wait for (a network filesystem that is gone) may
// never come: with an error, in their place. The handler's own answer, should it come, is for a request that the kernel
// knows no more.
type watch struct {
	limit  time.Duration
	answer func(id uint64, errno syscall.Errno) // sends it to the kernel
	fault  func(i inode, err error)             // notes it
	table  *table

	mu    sync.Mutex
	calls []*call     // under way; guarded by mu, as what they hold is
	stuck map[int]int // of each sequence, those that were answered and are still under way; guarded by mu
	told  bool        // the block tells of one that waits; guarded by mu
	ended bool        // nothing is answered any more; guarded by mu
}

// A call is a request that may wait for token files.
type call struct {
	id    uint64
	inode inode
	index int // in watch.calls
	ticks int // that it has been under way: a process that was stopped for a while has not waited

	expired bool // was answered

	// The number that it took, to be given back if its reader gets an error.
	took   bool
	fh     uint64
	cursor *atomic.Uint64
	number uint64
	span   span
}

var calls = sync.Pool{New: func() any { return new(call) }}

const (
	// A request that waits that long is told of in the block.
	longWait = time.Second
	// Of a sequence with that many handlers stuck, no more are begun: each keeps a thread.
	maxStuck = 16
)

var errTooOften = fmt.Errorf("%d processes ended that were to answer this", maxTimes)

// begin notes that a request begins to be handled, or says why it is not to be.
func (w *watch) begin(id uint64, i inode) (*call, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.stuck[i.sequence()] >= maxStuck:
		return nil, w.error()
	case w.table.tooOften(id):
		w.table.handled.Add(1)
		return nil, errTooOften
	}
	c := calls.Get().(*call)
	*c = call{id: id, inode: i, index: len(w.calls)}
	w.calls = append(w.calls, c)
	return c, nil
}

// end notes that a request was handled.
func (w *watch) end(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.calls) - 1
	w.calls[c.index] = w.calls[last]
	w.calls[c.index].index = c.index
	w.calls[last] = nil
	w.calls = w.calls[:last]
	if c.expired {
		w.stuck[c.inode.sequence()]--
	} else {
		w.table.handled.Add(1)
	}
	calls.Put(c)
}

// took notes which number a call took.
func (w *watch) took(c *call, fh uint64, cursor *atomic.Uint64, number uint64, r span) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.expired {
		w.table.failed(fh, cursor, number, r)
		return
	}
	c.took, c.fh, c.cursor, c.number, c.span = true, fh, cursor, number, r
}

// failed gives the number of a call back.
func (w *watch) failed(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.took {
		w.table.failed(c.fh, c.cursor, c.number, c.span)
		c.took = false
	}
}

// run watches until done is closed.
func (w *watch) run(done <-chan struct{}) {
	tick := min(w.limit/8, longWait/4)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			w.tick(tick)
		}
	}
}

func (w *watch) tick(tick time.Duration) {
	for _, i := range w.expire(tick) {
		w.fault(i, w.error())
	}
}

// expire answers calls that have waited too long, and returns what they asked for.
func (w *watch) expire(tick time.Duration) (expired []inode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	longest := map[int]int{}
	for _, c := range w.calls {
		c.ticks++
		sequence := c.inode.sequence()
		longest[sequence] = max(longest[sequence], c.ticks)
		if c.expired || time.Duration(c.ticks)*tick <= w.limit {
			continue
		}
		c.expired = true
		w.stuck[sequence]++
		if c.took {
			w.table.failed(c.fh, c.cursor, c.number, c.span)
			c.took = false
		}
		// Under the lock, so that the handler does not answer before.
		w.answer(c.id, syscall.ETIMEDOUT)
		expired = append(expired, c.inode)
	}
	if late := slices.Max(append(slices.Collect(maps.Values(longest)), 0)); time.Duration(late)*tick < longWait && !w.told {
		return expired
	}
	w.told = false
	now := monotonic()
	for n := range w.table.usedStates.Load() {
		waiting := int64(0)
		if waited := time.Duration(longest[int(n)+1]) * tick; waited >= longWait {
			waiting = now - int64(waited)
			w.told = true
		}
		if state := &w.table.states[n+1]; state.waiting.Load() != waiting && (waiting == 0 || state.waiting.Load() == 0) {
			state.waiting.Store(waiting)
		}
	}
	return expired
}

func (w *watch) error() error {
	return fmt.Errorf("the token files gave no answer within %v (%w)", w.limit, syscall.ETIMEDOUT)
}

// close returns when nothing will be answered any more.
func (w *watch) close() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
}
