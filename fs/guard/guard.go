// Package guard keeps a file system answering whose handlers may wait for ever, as for a disk that is gone.
//
// A [Guard] is a fuse.RawFileSystem around another one. Every request that may wait has an answer within a time: an error, if its
// handler has not ended. The handler is left to itself; the kernel ignores its answer, and the Guard undoes what it did. [Limits]
// bound how many requests use the files of a split at a time. A handler that panics is an error to its reader.
package guard

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
)

// A FileSystem is what a Guard guards. The channel that its handlers get is closed when the request is late: it has an answer.
type FileSystem interface {
	fuse.RawFileSystem

	// Split is the number of the split that a node belongs to, from 1 on, or 0.
	Split(node uint64) int

	// How many rows a request reads from token files, at least 1 if it looks at them, and 0 if it does not. ReadRows also
	// returns the length of the reply in bytes.
	LookupRows(dir uint64, name string) int64
	OpenRows(node uint64) int64
	ReadRows(in *fuse.ReadIn) (rows int64, bytes int)

	// GiveBack gives back what a request took that gets an error in its handler's place: the batch number of a read. Otherwise
	// Answered is called when the handler has ended.
	GiveBack(id uint64)
	Answered(id uint64)

	// Fault notes the error of a request, and returns its errno.
	Fault(node uint64, err error) fuse.Status
}

// A Guard guards a FileSystem.
//
// Lock order: mu, then the locks of GiveBack and Answered.
type Guard struct {
	FileSystem
	o Options

	mu       sync.Mutex
	requests []*request // under way; guarded by mu, as what they hold is, and the attempts of Shared
	stuck    []int      // requests of each split that were answered and are still under way; guarded by mu
	stopped  bool       // nothing is answered any more; guarded by mu
}

// Options are what a Guard works with.
type Options struct {
	Limits   *Limits
	Shared   *state.Shared
	Timeout  time.Duration                        // within which every request has an answer
	Answer   func(id uint64, errno syscall.Errno) // sends an error to the kernel
	Panicked func(p any) fuse.Status              // is told of a handler's panic, and returns the answer
}

// A request is one of the kernel's whose handler has not ended.
type request struct {
	id, node uint64
	split    int
	index    int           // in Guard.requests
	ticks    int           // since it began; not a time, which would count while this process was stopped
	late     chan struct{} // closed when it was answered in its handler's place
	expired  bool          // late is closed
	stuck    bool          // counts in Guard.stuck
}

var requests = sync.Pool{New: func() any { return &request{late: make(chan struct{})} }}

const (
	// Shared shows splits whose requests wait for so long.
	longWait = time.Second
	// While so many handlers of a split are stuck, its other requests fail at once.
	maxStuck = 16
	// The kernel repeats a failed read for the page cache again and again for some mappings: this leaves it little of a processor.
	pageCachePause = time.Millisecond
)

var errExhausted = fmt.Errorf("given up: %d processes ended by themselves while this had no answer", state.MaxAttempts)

// ErrLate is the error of a request that has an answer already. The log has another error for it.
var ErrLate = fmt.Errorf("too late (%w)", syscall.ETIMEDOUT)

// New makes a Guard around a file system. Run must run too.
func New(inner FileSystem, o Options) *Guard {
	return &Guard{FileSystem: inner, o: o, stuck: make([]int, len(o.Limits.splits))}
}

func (o *Options) tick() time.Duration { return min(o.Timeout/8, longWait/4) }

func (g *Guard) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return g.answer(header, nil,
		func() (int64, int) { return g.LookupRows(header.NodeId, name), 0 },
		func(late <-chan struct{}) fuse.Status { return g.FileSystem.Lookup(late, header, name, out) },
		func() { g.Forget(out.NodeId, 1) })
}

func (g *Guard) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.answer(&in.InHeader, nil,
		func() (int64, int) { return 0, 0 },
		func(late <-chan struct{}) fuse.Status { return g.FileSystem.GetAttr(late, in, out) },
		func() {})
}

func (g *Guard) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.answer(&in.InHeader, nil,
		func() (int64, int) { return g.OpenRows(in.NodeId), 0 },
		func(late <-chan struct{}) fuse.Status { return g.FileSystem.Open(late, in, out) },
		func() { g.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh}) })
}

func (g *Guard) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (result fuse.ReadResult, status fuse.Status) {
	status = g.answer(&in.InHeader, buf,
		func() (int64, int) { return g.ReadRows(in) },
		func(late <-chan struct{}) (status fuse.Status) {
			result, status = g.FileSystem.Read(late, in, buf)
			return status
		},
		func() {}) // GiveBack did it
	if !status.Ok() && ForPageCache(in) {
		time.Sleep(pageCachePause)
	}
	return result, status
}

// ForPageCache tells a read that fills the page cache, for sendfile or a mapping or a read(2) of a file that is cached, from one
// that is a read(2) itself: only the latter has a lock owner.
func ForPageCache(in *fuse.ReadIn) bool { return in.ReadFlags&fuse.READ_LOCKOWNER == 0 }

// answer handles a request. buf is the memory for its reply; undo undoes what handle did for a reader that has another answer.
func (g *Guard) answer(header *fuse.InHeader, buf []byte, rows func() (int64, int), handle func(late <-chan struct{}) fuse.Status, undo func()) (status fuse.Status) {
	r, err := g.begin(header)
	if err != nil {
		return g.Fault(header.NodeId, err)
	}
	var held held
	defer func() {
		if p := recover(); p != nil {
			g.GiveBack(header.Unique)
			status = g.o.Panicked(p)
		}
		held.release()
		if late := g.end(r); late && status.Ok() {
			undo()
		}
	}()
	n, bytes := rows()
	if held, err = g.o.Limits.acquire(r.split, n, bytes, buf, r.late); err != nil {
		return g.Fault(header.NodeId, err)
	}
	return handle(r.late)
}

// begin notes that a request begins. It returns an error if the request should not be handled; otherwise end must follow.
func (g *Guard) begin(header *fuse.InHeader) (*request, error) {
	id, split := header.Unique, g.Split(header.NodeId)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stuck[split] >= g.o.Limits.maxStuck {
		return nil, g.timedOut()
	}
	if g.o.Shared.Exhausted(id) {
		g.noteAnswer(id)
		return nil, errExhausted
	}
	r := requests.Get().(*request)
	*r = request{id: id, node: header.NodeId, split: split, index: len(g.requests), late: r.late}
	g.requests = append(g.requests, r)
	return r, nil
}

func (g *Guard) end(r *request) (late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.requests) - 1
	g.requests[r.index] = g.requests[last]
	g.requests[r.index].index = r.index
	g.requests[last] = nil
	g.requests = g.requests[:last]
	if r.stuck {
		g.stuck[r.split]--
	}
	if r.expired {
		return true // r is not used again: its channel is closed
	}
	g.Answered(r.id)
	g.noteAnswer(r.id)
	requests.Put(r)
	return false
}

// noteAnswer notes that a request has an answer, or is about to. The caller holds mu.
func (g *Guard) noteAnswer(id uint64) {
	g.o.Shared.EndAttempts(id)
	g.o.Shared.Answered.Add(1)
}

// Run answers late requests. It never returns.
func (g *Guard) Run() {
	for range time.Tick(g.o.tick()) {
		g.tick()
	}
}

func (g *Guard) tick() {
	for _, node := range g.expire() {
		g.Fault(node, g.timedOut())
	}
}

// expire answers the requests that have waited too long, and returns their nodes.
func (g *Guard) expire() (late []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil
	}
	longest := make([]time.Duration, len(g.stuck))
	for _, r := range g.requests {
		r.ticks++
		waited := time.Duration(r.ticks) * g.o.tick()
		longest[r.split] = max(longest[r.split], waited)
		switch {
		case r.expired && !r.stuck: // those that waited for a semaphore have ended since
			r.stuck = true
			g.stuck[r.split]++
		case !r.expired && waited > g.o.Timeout:
			r.expired = true
			close(r.late)
			g.GiveBack(r.id)
			g.o.Answer(r.id, syscall.ETIMEDOUT) // under the lock, so that the handler does not answer before
			g.noteAnswer(r.id)
			late = append(late, r.node)
		}
	}
	g.showWaits(longest)
	return late
}

// showWaits shows in the shared state which splits have long kept a request waiting.
func (g *Guard) showWaits(longest []time.Duration) {
	for split := 1; split < len(longest); split++ {
		entry := &g.o.Shared.Sequences[split]
		switch waits := longest[split] >= longWait; {
		case waits && entry.Waiting.Load() == 0:
			entry.Waiting.Store(state.Monotonic() - int64(longest[split]))
		case !waits && entry.Waiting.Load() != 0:
			entry.Waiting.Store(0)
		}
	}
}

func (g *Guard) timedOut() error {
	return fmt.Errorf("the token files gave no answer within %v, or readers asked too much of them (%w)", g.o.Timeout, syscall.ETIMEDOUT)
}

// Stop returns when nothing will be answered any more.
func (g *Guard) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
}

// CheckLock takes and releases the lock. It blocks if a request never releases it.
func (g *Guard) CheckLock() {
	g.mu.Lock()
	g.mu.Unlock() //lint:ignore SA2001 only whether it can be taken matters
}
