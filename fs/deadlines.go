package fs

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
)

// deadlines answer the requests whose handlers do not answer in time, because what they wait for (a network filesystem that is
// gone) may never come: with an error, in the handler's place. The handler is left to itself. Its own answer, should it come, is
// for a request that the kernel no longer knows, and what it did is undone.
//
// Lock order: mu, then turns.mu, then the locks of package state.
type deadlines struct {
	limit   time.Duration
	answer  func(id uint64, errno syscall.Errno) // sends an error to the kernel
	fault   func(i inode, err error)             // notes it
	splitOf func(sequence int) int
	turns   *turns
	shared  *state.Shared
	handles *state.Handles

	mu        sync.Mutex
	requests  []*request  // under way; guarded by mu, as what they hold is, and the attempts of shared
	stuck     map[int]int // of each split, requests that were answered and are still under way; guarded by mu
	waitShown bool        // shared shows one that waits; guarded by mu
	ended     bool        // nothing is answered any more; guarded by mu
}

// A request is one of the kernel's whose handler has not ended. The handler may be waiting for token files.
type request struct {
	id    uint64
	inode inode
	split int // that its file is of, or 0
	index int // in deadlines.requests
	ticks int // since it began; not a time, which would count while this process was stopped

	waiter            *waiter     // of the last turn that it waited for, which may have begun, or nil; guarded by deadlines.mu
	caller            fuse.Caller // this and what follows is the handler's own
	hasTurn, hasPlace bool

	expired bool   // was answered
	stuck   bool   // counts in deadlines.stuck
	undo    func() // undoes what the handler did for the reader, or nil

	// What was assigned to it, to be given back if its reader gets an error.
	assigned bool
	read     state.Read
	number   uint64
	added    bool
}

var requests = sync.Pool{New: func() any { return new(request) }}

const (
	// Shared tells of a request that waits for so long.
	longWait = time.Second
	// While so many handlers of a split are stuck, or all that may have a turn, other requests of it fail at once.
	maxStuck = 16
)

var errExhausted = fmt.Errorf("given up: %d processes ended by themselves while this had no answer", state.MaxAttempts)

// errLate is the error of a request that was answered in its handler's place.
var errLate = fmt.Errorf("too late (%w)", syscall.ETIMEDOUT)

// begin notes that a request begins. It returns an error if the request should not be handled; otherwise end must follow.
func (d *deadlines) begin(id uint64, i inode) (*request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	split := d.splitOf(i.sequence())
	if d.stuck[split] >= min(maxStuck, int(d.turns.perSplit-d.turns.perSplit/2)) {
		return nil, d.error()
	}
	if d.shared.Exhausted(id) {
		d.answered(id)
		return nil, errExhausted
	}
	r := requests.Get().(*request)
	*r = request{id: id, inode: i, split: split, index: len(d.requests)}
	d.requests = append(d.requests, r)
	return r, nil
}

// end notes that the handler of a request has ended. If it was too late, what it did is undone.
func (d *deadlines) end(r *request) {
	if d.remove(r) && r.undo != nil {
		r.undo()
	}
	r.undo = nil // begin clears the rest
	requests.Put(r)
}

func (d *deadlines) remove(r *request) (expired bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.requests) - 1
	d.requests[r.index] = d.requests[last]
	d.requests[r.index].index = r.index
	d.requests[last] = nil
	d.requests = d.requests[:last]
	if r.stuck {
		d.stuck[r.split]--
	}
	if !r.expired {
		d.answered(r.id)
	}
	return r.expired
}

// answered notes that a request has an answer, or is about to. The caller holds mu.
func (d *deadlines) answered(id uint64) {
	d.shared.EndAttempts(id)
	d.shared.Answered.Add(1)
}

// wait puts a request of a process in the queue for a turn. The error is errLate or errTooMany.
func (d *deadlines) wait(r *request, of *turns, process uint32) (w *waiter, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.expired {
		return nil, errLate
	}
	if w, err = of.wait(r.split, r.caller.Uid, process, r.hasPlace); err == nil {
		r.waiter = w
	}
	return w, err
}

// late returns errLate for a request that was answered, and nil for others.
func (d *deadlines) late(r *request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.expired {
		return errLate
	}
	return nil
}

// assign assigns a batch to a request, unless that is late.
func (d *deadlines) assign(r *request, read state.Read) (number uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.expired {
		return 0, errLate
	}
	number, added, err := d.handles.AssignBatch(read)
	if err == nil {
		r.assigned, r.read, r.number, r.added = true, read, number, added
	}
	return number, err
}

// giveBack gives the number of a request back, because its read failed.
func (d *deadlines) giveBack(r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.giveBackLocked(r)
}

func (d *deadlines) giveBackLocked(r *request) {
	if r.assigned {
		d.handles.GiveBack(r.read, r.number, r.added)
		r.assigned = false
	}
}

// run answers late requests until done is closed.
func (d *deadlines) run(done <-chan struct{}) {
	tick := min(d.limit/8, longWait/4)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			d.tick(tick)
		}
	}
}

func (d *deadlines) tick(tick time.Duration) {
	for _, i := range d.expire(tick) {
		d.fault(i, d.error())
	}
}

// expire answers the requests that have waited too long, and returns their inodes.
func (d *deadlines) expire(tick time.Duration) (expired []inode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil
	}
	longest := map[int]int{} // ticks, by sequence
	for _, r := range d.requests {
		r.ticks++
		sequence := r.inode.sequence()
		longest[sequence] = max(longest[sequence], r.ticks)
		if r.expired || time.Duration(r.ticks)*tick <= d.limit {
			continue
		}
		r.expired = true
		if r.waiter == nil || !r.waiter.cancel() { // one that waits for a turn ends at once
			r.stuck = true
			d.stuck[r.split]++
		}
		d.giveBackLocked(r)
		// Under the lock, so that the handler does not answer before.
		d.answer(r.id, syscall.ETIMEDOUT)
		d.answered(r.id)
		expired = append(expired, r.inode)
	}
	d.tellWaiting(longest, tick)
	return expired
}

// tellWaiting notes in the shared state which sequences have long kept a request waiting.
func (d *deadlines) tellWaiting(longest map[int]int, tick time.Duration) {
	late := slices.Max(append(slices.Collect(maps.Values(longest)), 0))
	if time.Duration(late)*tick < longWait && !d.waitShown {
		return
	}
	d.waitShown = false
	now := state.Monotonic()
	for n := range d.shared.SequencesUsed() {
		waiting := int64(0)
		if waited := time.Duration(longest[n+1]) * tick; waited >= longWait {
			waiting = now - int64(waited)
			d.waitShown = true
		}
		if entry := &d.shared.Sequences[n+1]; entry.Waiting.Load() != waiting && (waiting == 0 || entry.Waiting.Load() == 0) {
			entry.Waiting.Store(waiting)
		}
	}
}

func (d *deadlines) error() error {
	return fmt.Errorf("the token files gave no answer within %v, or readers asked too much of them (%w)", d.limit, syscall.ETIMEDOUT)
}

// close returns when nothing will be answered any more.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
}
