// Package guard keeps a file system answering even if its handlers wait forever, for example for a
// disk that is gone.
//
// A [Guard] is a fuse.RawFileSystem around another one, the [FileSystem]. Every request that may
// wait takes the same path:
//
//	register → cost → admit → handle → done
//
// A request is registered with its [Cost], and admitted once the limits of its split allow it; see
// limits.go. If it has no reply within Options.Timeout, the Guard replies with an error, which the
// kernel takes for the reply of the handler, and undoes what the handler does later. A panic of a
// handler becomes an error for its reader.
package guard

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
	"batchfs/internal/clock"
)

// A FileSystem is the file system behind a Guard. For each request, the Guard calls a cost method,
// the handler and, for a READ, Done. A FileSystem never calls its Guard.
//
// The channel that a handler gets is closed when the request times out.
type FileSystem interface {
	fuse.RawFileSystem

	// ServeRead is the handler of READ, in place of Read. waited is how long the request has waited
	// to be admitted.
	ServeRead(cancel <-chan struct{}, waited time.Duration, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status)

	// The cost methods do no I/O and create nothing.
	CostOfLookup(header *fuse.InHeader, name string) Cost
	CostOfGetAttr(in *fuse.GetAttrIn) Cost
	CostOfOpen(in *fuse.OpenIn) Cost
	CostOfRead(in *fuse.ReadIn) Cost

	// Done accounts for a READ that succeeded in time, before its reply is sent.
	Done(in *fuse.ReadIn, reply fuse.ReadResult)

	// Rollback undoes the side effects of request id, which timed out or panicked: a READ returns its
	// batch number. Discard notes that the reply of a READ that timed out will not be delivered.
	Rollback(id uint64)
	Discard(reply fuse.ReadResult)

	// FailRequest records the error of request id for a node, and returns its errno.
	FailRequest(id, node uint64, err error) fuse.Status
}

// A Cost is what a request needs. Requests without rows are admitted at once.
type Cost struct {
	Split int   // split whose limits apply; 0 if the request belongs to none
	Rows  int64 // rows to read, or 1 to check token files; 0 if no token file is used
	Reply int   // memory of the reply, in bytes

	// Pages are the bytes of the file with which a READ fills the page cache, for a mapping, sendfile
	// or a read(2) of a cached file. They are empty if the READ is a read(2) itself.
	Pages Pages
}

// Pages is a byte range of a file.
type Pages struct{ From, To uint64 }

// A Guard guards a FileSystem. It is safe for concurrent use.
//
// Lock order: mu, then the locks of Rollback.
type Guard struct {
	FileSystem
	o Options

	// mu guards the fields below, the fields of their elements, and the attempts in Options.Shared.
	mu        sync.Mutex
	splits    []split    // by number
	requests  []*request // registered requests whose handlers have not returned
	abandoned int        // number of requests that timed out
	stopped   bool       // no request is answered anymore
}

// Options configure a Guard.
type Options struct {
	Splits     int   // splits have the numbers 1 to Splits
	ReplyBytes int64 // memory for the replies of all splits, in bytes
	Shared     *state.Shared
	Timeout    time.Duration                        // limit on the time until a reply
	SendError  func(id uint64, errno syscall.Errno) // sends an error to the kernel
	Panicked   func(p any) fuse.Status              // reports the panic of a handler, and returns the reply

	// Stalled returns how long a check of all token files of a split has had no response, or 0; nil
	// if no such checks exist.
	Stalled func(split int) time.Duration
}

// A request is registered until its handler returns.
type request struct {
	id, node uint64
	split    int
	class    *class        // limits that apply; nil if there are none
	reply    int64         // bytes of class.replies that it needs
	pages    Pages         // pages that it fills
	ticks    int           // ticks since it was registered; a clock would count while this process is stopped
	waits    bool          // it is in class.queue
	waited   time.Duration // time in class.queue
	admitted chan struct{} // receives when a request that waits is admitted
	timedOut bool          // it timed out
	cancel   chan struct{} // closed when it times out
}

// pool has requests whose channels are open.
var pool = sync.Pool{New: func() any { return &request{admitted: make(chan struct{}, 1), cancel: make(chan struct{})} }}

const (
	// longWait is how long a request waits before Shared shows that its split does not respond.
	longWait = time.Second

	// pageCachePause is the delay of a failed READ for the page cache. Some mappings make the kernel
	// repeat it without end, and the delay leaves such a loop little processor time.
	pageCachePause = time.Millisecond
)

var errExhausted = fmt.Errorf("given up: %d processes ended by themselves while this had no answer", state.MaxAttempts)

// New returns a Guard around a file system. The caller must start Run.
func New(inner FileSystem, o Options) *Guard {
	o.Shared.Gauges.Waiting.Store(0)
	o.Shared.ReplyBytes.Store(0)
	return &Guard{FileSystem: inner, o: o, splits: newSplits(o.Splits, o.ReplyBytes)}
}

func (o *Options) tick() time.Duration { return min(o.Timeout/8, longWait/4) }

// These are the opcodes that may wait. Every other request goes directly to the FileSystem.
//
//	opcode   cost                     undone if the handler succeeds after the timeout
//	LOOKUP   1 row or nothing         the lookup: FORGET
//	GETATTR  nothing                  nothing
//	OPEN     1 row or nothing         the handle: RELEASE
//	READ     its rows and its reply   the reply: Discard
//
// The batch number of a READ is returned at the timeout, not when its handler returns (Rollback).

func (g *Guard) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return g.serve(header, g.CostOfLookup(header, name), nil,
		func(r *request) fuse.Status { return g.FileSystem.Lookup(r.cancel, header, name, out) },
		func() { g.Forget(out.NodeId, 1) })
}

func (g *Guard) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.serve(&in.InHeader, g.CostOfGetAttr(in), nil,
		func(r *request) fuse.Status { return g.FileSystem.GetAttr(r.cancel, in, out) },
		func() {})
}

func (g *Guard) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.serve(&in.InHeader, g.CostOfOpen(in), nil,
		func(r *request) fuse.Status { return g.FileSystem.Open(r.cancel, in, out) },
		func() { g.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh}) })
}

func (g *Guard) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (reply fuse.ReadResult, status fuse.Status) {
	cost, late := g.CostOfRead(in), false
	status = g.serve(&in.InHeader, cost, buf,
		func(r *request) (status fuse.Status) {
			reply, status = g.ServeRead(r.cancel, r.waited, in, buf)
			return status
		},
		func() {
			late = true
			g.Discard(reply)
		})
	switch {
	case status.Ok() && !late:
		g.Done(in, reply)
		reply = g.splits[cost.Split].trim(reply, buf)
	case !status.Ok() && cost.Pages != Pages{}:
		time.Sleep(pageCachePause)
	}
	return reply, status
}

// serve registers a request, admits it and calls its handler. If the handler succeeds after the
// timeout, when the kernel already has an error instead of its reply, serve calls undo.
func (g *Guard) serve(header *fuse.InHeader, cost Cost, buf []byte, handle func(*request) fuse.Status, undo func()) (status fuse.Status) {
	r, waits, err := g.beginRequest(header, cost)
	if err != nil {
		return g.FailRequest(header.Unique, header.NodeId, err)
	}
	defer func() {
		if p := recover(); p != nil {
			g.Rollback(header.Unique)
			status = g.o.Panicked(p)
		}
		if late := g.endRequest(r); late && status.Ok() {
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

// beginRequest registers a request, and admits it or puts it into a queue. Unless beginRequest
// returns an error, the caller must call endRequest.
func (g *Guard) beginRequest(header *fuse.InHeader, cost Cost) (r *request, waits bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.splits[cost.Split]
	class, reply := s.needs(cost)
	switch {
	case g.o.Shared.BeginAttempt(header.Unique):
		err = errExhausted
	case g.abandoned > 0 && g.isAwaited(header.NodeId, cost.Pages):
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
	r = pool.Get().(*request)
	*r = request{
		id: header.Unique, node: header.NodeId, split: cost.Split, class: class, reply: reply, pages: cost.Pages,
		waits: waits, admitted: r.admitted, cancel: r.cancel,
	}
	g.requests = append(g.requests, r)
	switch {
	case waits:
		class.queue = append(class.queue, r)
		g.addWaiting(r.split, 1)
	case class != nil:
		g.take(r, 1)
	}
	return r, waits, nil
}

// isAwaited reports whether a request that timed out, and whose handler has not returned, fills some
// of these pages. The kernel repeats the READ for each reader that waits for a page, one after
// another, and each of them would wait for the whole timeout. The caller holds mu.
func (g *Guard) isAwaited(node uint64, fills Pages) bool {
	return slices.ContainsFunc(g.requests, func(r *request) bool {
		return r.timedOut && r.node == node && r.pages.From < fills.To && fills.From < r.pages.To
	})
}

// endRequest unregisters a request whose handler has returned, and admits others in its place. It
// reports whether the request timed out.
func (g *Guard) endRequest(r *request) (late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.requests, r)
	g.requests = slices.Delete(g.requests, i, i+1)
	g.release(r)
	if r.timedOut {
		g.abandoned--
		return true // r is not reused, because its channel is closed
	}
	g.recordReply(r.id)
	pool.Put(r)
	return false
}

// recordReply records that a request has its reply, or will have it soon. The caller holds mu.
func (g *Guard) recordReply(id uint64) {
	g.o.Shared.EndAttempt(id)
	g.o.Shared.Replies.Add(1)
}

// Run answers requests that time out. It never returns.
func (g *Guard) Run() {
	for range time.Tick(g.o.tick()) {
		g.tick()
	}
}

// tick answers the requests that have waited too long, and records in the shared memory which splits
// do not respond.
func (g *Guard) tick() {
	expired, longest := g.timeOutRequests()
	for _, r := range expired {
		g.FailRequest(r.id, r.node, g.timeoutError())
	}
	for split, waited := range longest {
		if split > 0 && g.o.Stalled != nil {
			waited = max(waited, g.o.Stalled(split))
		}
		since := int64(0)
		if waited >= longWait {
			since = clock.Now() - int64(waited)
		}
		g.o.Shared.Sequences[split].WaitingSince.Store(since)
	}
}

func (g *Guard) timeoutError() error {
	return fmt.Errorf("the token files gave no answer within %v, or readers asked too much of them (%w)", g.o.Timeout, syscall.ETIMEDOUT)
}

// timeOutRequests answers the requests that have waited too long, and returns them. It also returns
// how long the longest request of each split has waited.
func (g *Guard) timeOutRequests() (expired []*request, longest []time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil, nil
	}
	longest = make([]time.Duration, len(g.splits))
	for _, r := range g.requests {
		r.ticks++
		waited := time.Duration(r.ticks) * g.o.tick()
		longest[r.split] = max(longest[r.split], waited)
		if r.timedOut || waited <= g.o.Timeout {
			continue
		}
		r.timedOut = true
		g.abandoned++
		close(r.cancel)
		g.Rollback(r.id)
		g.o.SendError(r.id, syscall.ETIMEDOUT) // with mu held, so that the handler cannot reply first
		g.recordReply(r.id)
		expired = append(expired, r)
	}
	return expired, longest
}

// Stop returns when no request will be answered anymore.
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
