// Package guard keeps a file system responsive even if its handlers block forever, for example
// because a disk has failed.
//
// A [Guard] is a fuse.RawFileSystem that wraps another one, the [FileSystem]. Every request that
// may block goes through the same steps:
//
//	cost → register → admit → handle → end
//
// The Guard registers a request with its [Cost], and admits it once its split's limits allow that.
// If there is no reply within Options.Timeout, or if the reader is being killed, the Guard abandons
// the request: it replies with an error, and undoes what the handler does afterwards. If a handler
// panics, the reader gets an error.
package guard

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
	"batchfs/internal/clock"
)

// A FileSystem is the file system that a Guard wraps. It must be safe for concurrent use. For each
// request that may block, the Guard calls a cost method, the handler and, for a READ that succeeds,
// Succeeded. The FileSystem calls the Guard only after a reply, for permits to prefetch.
//
// The cancel channel of a handler is closed when the request is abandoned.
type FileSystem interface {
	fuse.RawFileSystem

	// HandleRead handles a READ in place of Read. waited is the time that the request waited for
	// admission.
	HandleRead(cancel <-chan struct{}, waited time.Duration, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status)

	// The cost methods do no I/O, and create neither a Sequence nor a batch.
	CostOfLookup(header *fuse.InHeader, name string) Cost
	CostOfGetAttr(in *fuse.GetAttrIn) Cost
	CostOfOpen(in *fuse.OpenIn) Cost
	CostOfRead(in *fuse.ReadIn) Cost
	CostOfReadDir(in *fuse.ReadIn) Cost

	// Succeeded counts a READ that succeeded and was not abandoned. Its reply is about to be sent.
	Succeeded(in *fuse.ReadIn, reply fuse.ReadResult)

	// Rollback undoes the side effects of request id, which was rejected, abandoned or panicked: a
	// READ of next returns its batch number, which an earlier worker may have taken.
	Rollback(id uint64)

	// Discard releases the reply of a READ that was abandoned. It is not sent.
	Discard(reply fuse.ReadResult)

	// FailRequest records err as the result of request id for a node, and returns its errno.
	FailRequest(id, node uint64, err error) fuse.Status
}

// A Cost is what a request needs. Requests with 0 rows are admitted immediately.
type Cost struct {
	Split      int   // split whose limits apply; 0 if the request belongs to none
	Rows       int64 // rows to read, or 1 to check token files; 0 if no token file is used
	ReplyBytes int   // size of the reply, in bytes

	// Pages is the part of the file that a READ loads into the page cache, for a mapping, sendfile
	// or a read(2) of a cached file. It is empty if the READ bypasses the page cache.
	Pages Pages
}

// Pages is the byte range [From, To) of a file.
type Pages struct{ From, To uint64 }

// A Guard is a file system with limits and timeouts. It is safe for concurrent use.
//
// The following opcodes may block. All other requests go directly to the FileSystem. If a handler
// succeeds after its request was abandoned, its effects are undone:
//
//	opcode   cost                 undone by
//	LOOKUP   1 row or nothing     FORGET
//	GETATTR  1 row or nothing     -
//	OPEN     1 row or nothing     RELEASE
//	READ     its rows and reply   Discard
//	         or 1 row or nothing
//	READDIR  1 row or nothing     -
//
// Rollback returns the batch number of an abandoned READ without waiting for the handler.
//
// Lock order: mu, then the locks that FileSystem.Rollback takes.
type Guard struct {
	FileSystem
	opts Options

	// mu guards the fields below, the fields of their elements, and the attempts of Options.Shared.
	mu        sync.Mutex
	splits    []split    // indexed by number
	requests  []*request // registered requests
	abandoned int        // registered requests that were abandoned
	stopped   bool       // whether no request is abandoned anymore
}

// Options configure a Guard.
type Options struct {
	Splits     int   // number of splits, which are numbered from 1
	ReplyBytes int64 // memory for the replies of all splits, in bytes
	Shared     *state.Shared
	Timeout    time.Duration                        // limit on the time from request to reply
	SendError  func(id uint64, errno syscall.Errno) // replies to the kernel with an error
	Panicked   func(p any) fuse.Status              // reports a handler's panic, returns the reply
	IsKilled   func(thread uint32) bool             // reports whether a reader is being killed

	// Stalled returns how long a background check of a split's token files has been blocked, or 0.
	// It can be nil.
	Stalled func(split int) time.Duration
}

// A request is registered until its handler returns.
type request struct {
	id, node   uint64
	thread     uint32 // id of the reader's thread
	split      int
	class      *class // nil if no limits apply
	replyBytes int64  // taken from class.freeReplyBytes
	pages      Pages  // see Cost.Pages
	ticks      int    // age in ticks; unlike a clock, ticks stop with this process
	isQueued   bool
	waited     time.Duration // time in class.queue; not guarded, because only the handler uses it
	admitted   chan struct{} // receives a value on admission from class.queue
	// interrupted is closed by go-fuse when the kernel sends an INTERRUPT.
	interrupted <-chan struct{}
	isAbandoned bool
	cancel      chan struct{} // closed when the request is abandoned
}

// requestPool recycles requests that were not abandoned. Their channels are open and empty.
var requestPool = sync.Pool{New: func() any {
	return &request{admitted: make(chan struct{}, 1), cancel: make(chan struct{})}
}}

const (
	// longWait is the age from which a request marks its split as unresponsive.
	longWait = time.Second

	// pageCachePause delays the error of a READ for the page cache. For some mappings, the kernel
	// repeats a failed READ forever; the delay saves processor time.
	pageCachePause = time.Millisecond
)

var errExhausted = fmt.Errorf("gave up on a request: %d workers crashed before they could answer it",
	state.MaxResentCrashes+1)

// New returns a Guard that wraps the file system that makeInner returns. makeInner gets the Guard,
// for permits to prefetch. The caller must call Run in a goroutine.
func New(o Options, makeInner func(*Guard) (FileSystem, error)) (g *Guard, err error) {
	o.Shared.Gauges.Waiting.Store(0)
	o.Shared.ReplyBytes.Store(0)
	g = &Guard{opts: o, splits: newSplits(o.Splits, o.ReplyBytes)}
	g.FileSystem, err = makeInner(g)
	return g, err
}

// timeoutTicks returns the age in ticks at which a request times out. Ticks come every quarter of
// longWait, or more often: a request can begin just before a tick, and must not time out before a
// store has had 95% of the timeout to respond.
func (o *Options) timeoutTicks() int {
	const every = longWait / 4
	return max(32, int((o.Timeout+every-1)/every))
}

func (o *Options) tickInterval() time.Duration { return o.Timeout / time.Duration(o.timeoutTicks()) }

func (g *Guard) Lookup(
	interrupted <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut,
) fuse.Status {
	return g.handleRequest(interrupted, header, g.CostOfLookup(header, name), nil,
		func(r *request) fuse.Status { return g.FileSystem.Lookup(r.cancel, header, name, out) },
		func() { g.Forget(out.NodeId, 1) })
}

func (g *Guard) GetAttr(interrupted <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.handleRequest(interrupted, &in.InHeader, g.CostOfGetAttr(in), nil,
		func(r *request) fuse.Status { return g.FileSystem.GetAttr(r.cancel, in, out) },
		func() {})
}

func (g *Guard) Open(interrupted <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.handleRequest(interrupted, &in.InHeader, g.CostOfOpen(in), nil,
		func(r *request) fuse.Status { return g.FileSystem.Open(r.cancel, in, out) },
		func() { g.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh}) })
}

func (g *Guard) ReadDir(interrupted <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return g.handleRequest(interrupted, &in.InHeader, g.CostOfReadDir(in), nil,
		func(r *request) fuse.Status { return g.FileSystem.ReadDir(r.cancel, in, out) },
		func() {})
}

func (g *Guard) Read(
	interrupted <-chan struct{}, in *fuse.ReadIn, buf []byte,
) (reply fuse.ReadResult, status fuse.Status) {
	cost, abandoned := g.CostOfRead(in), false
	status = g.handleRequest(interrupted, &in.InHeader, cost, buf,
		func(r *request) (status fuse.Status) {
			reply, status = g.HandleRead(r.cancel, r.waited, in, buf)
			return status
		},
		func() {
			abandoned = true
			g.Discard(reply)
		})
	switch {
	case abandoned: // nobody sees this error, because the kernel already has one
		return nil, fuse.Status(syscall.ETIMEDOUT)
	case status.Ok():
		g.Succeeded(in, reply)
		reply = g.splits[cost.Split].freeWhenSent(reply, buf)
	case cost.Pages != Pages{}:
		time.Sleep(pageCachePause)
	}
	return reply, status
}

// handleRequest registers a request, waits for its admission and calls its handler. If the handler
// succeeds after the request was abandoned, handleRequest calls undo, because the kernel has
// already received an error. await may discard the content of buf.
func (g *Guard) handleRequest(
	interrupted <-chan struct{}, header *fuse.InHeader, cost Cost, buf []byte,
	handle func(*request) fuse.Status, undo func(),
) (status fuse.Status) {
	r, waits, err := g.beginRequest(interrupted, header, cost)
	if err != nil {
		g.Rollback(header.Unique)
		return g.FailRequest(header.Unique, header.NodeId, err)
	}
	defer func() {
		if p := recover(); p != nil {
			g.Rollback(header.Unique)
			status = g.opts.Panicked(p)
		}
		if abandoned := g.endRequest(r); abandoned && status.Ok() {
			undo()
		}
	}()
	if waits {
		began := clock.Now()
		if !g.await(r, buf) {
			return fuse.Status(syscall.ETIMEDOUT)
		}
		r.waited = time.Duration(clock.Now() - began)
	}
	return handle(r)
}

// beginRequest registers a request, and admits it or, if waits is true, queues it. Unless there is
// an error, the caller must call endRequest.
func (g *Guard) beginRequest(
	interrupted <-chan struct{}, header *fuse.InHeader, cost Cost,
) (r *request, waits bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.splits[cost.Split]
	class, reply := s.classify(cost)
	switch {
	case g.opts.Shared.BeginAttempt(header.Unique):
		err = errExhausted
	case g.abandoned > 0 && g.overlapsTimedOut(header.NodeId, cost.Pages):
		err = g.timeoutError()
	case class != nil && !class.fits(reply):
		if waits = true; s.waiting.Load() >= maxWaiting {
			err = errTooMany
		}
	}
	if err != nil {
		g.recordReply(header.Unique)
		return nil, false, err
	}
	r = requestPool.Get().(*request)
	*r = request{
		id: header.Unique, node: header.NodeId, thread: header.Pid,
		split: cost.Split, class: class, replyBytes: reply, pages: cost.Pages,
		isQueued: waits, admitted: r.admitted, interrupted: interrupted, cancel: r.cancel,
	}
	g.requests = append(g.requests, r)
	switch {
	case waits:
		class.queue = append(class.queue, r)
		g.addWaiting(r.split, 1)
	case class != nil:
		g.reserve(r, 1)
	}
	return r, waits, nil
}

// overlapsTimedOut reports whether a handler that timed out is still reading some of these pages.
// The kernel repeats the READ for each reader of a page, one after another, and each would take the
// whole timeout. The caller holds mu.
func (g *Guard) overlapsTimedOut(node uint64, pages Pages) bool {
	return slices.ContainsFunc(g.requests, func(r *request) bool {
		return r.isAbandoned && r.node == node && r.pages.From < pages.To && pages.From < r.pages.To
	})
}

// endRequest unregisters a request whose handler has returned, and admits others.
func (g *Guard) endRequest(r *request) (abandoned bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.requests, r)
	g.requests = slices.Delete(g.requests, i, i+1)
	g.release(r)
	if r.isAbandoned {
		g.abandoned--
		return true // r cannot be reused, because cancel is closed
	}
	g.recordReply(r.id)
	requestPool.Put(r)
	return false
}

// recordReply counts a reply, which may not have been sent yet. The caller holds mu.
func (g *Guard) recordReply(id uint64) {
	g.opts.Shared.EndAttempt(id)
	g.opts.Shared.Replies.Add(1)
}

// Run abandons requests that time out or whose reader is being killed. It never returns.
func (g *Guard) Run() {
	for range time.Tick(g.opts.tickInterval()) {
		g.tick()
	}
}

// tick abandons requests, and records which splits do not respond.
func (g *Guard) tick() {
	killed := g.interruptedRequests()
	maps.DeleteFunc(killed, func(_ uint64, thread uint32) bool { return !g.opts.IsKilled(thread) })
	timedOut, longest := g.abandonRequests(killed)
	for _, r := range timedOut {
		g.FailRequest(r.id, r.node, g.timeoutError())
	}
	for split, waited := range longest {
		if split > 0 && g.opts.Stalled != nil {
			waited = max(waited, g.opts.Stalled(split))
		}
		since := int64(0)
		if waited >= longWait {
			since = clock.Now() - int64(waited)
		}
		g.opts.Shared.Sequences[split].WaitingSince.Store(since)
	}
}

func (g *Guard) timeoutError() error {
	return fmt.Errorf("the token files did not respond within %v, or could not keep up with their readers (%w)", g.opts.Timeout, syscall.ETIMEDOUT)
}

// interruptedRequests returns the thread of each request that the kernel has interrupted, by id.
// The kernel sends one INTERRUPT per request, for the first signal of any kind. If the reader is
// killed later, there is no other.
func (g *Guard) interruptedRequests() map[uint64]uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	threads := map[uint64]uint32{}
	for _, r := range g.requests {
		select {
		case <-r.interrupted:
			if !r.isAbandoned {
				threads[r.id] = r.thread
			}
		default:
		}
	}
	return threads
}

// abandonRequests abandons the requests with the ids in killed, and those that would exceed the
// timeout before the next tick. It returns the latter and, for each split, the age of its oldest
// request.
func (g *Guard) abandonRequests(killed map[uint64]uint32) (timedOut []*request, longest []time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil, nil
	}
	longest = make([]time.Duration, len(g.splits))
	for _, r := range g.requests {
		r.ticks++
		waited := time.Duration(r.ticks) * g.opts.tickInterval()
		longest[r.split] = max(longest[r.split], waited)
		_, isKilled := killed[r.id]
		switch {
		case r.isAbandoned:
		case isKilled:
			r.pages = Pages{} // other readers of these pages have not waited for the whole timeout
			g.abandon(r, syscall.EINTR)
		case r.ticks >= g.opts.timeoutTicks():
			g.abandon(r, syscall.ETIMEDOUT)
			timedOut = append(timedOut, r)
		}
	}
	return timedOut, longest
}

// abandon replies to a request with an error. The caller holds mu, so the handler cannot reply
// first.
func (g *Guard) abandon(r *request, errno syscall.Errno) {
	r.isAbandoned = true
	g.abandoned++
	close(r.cancel)
	g.Rollback(r.id)
	g.opts.SendError(r.id, errno)
	g.recordReply(r.id)
}

// Stop is called before another process takes over. Afterwards, Run sends no errors.
func (g *Guard) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
}

// CheckLock takes and releases the Guard's lock, so it blocks if a request holds the lock forever.
func (g *Guard) CheckLock() {
	g.mu.Lock()
	g.mu.Unlock() //lint:ignore SA2001 the empty critical section is intended
}
