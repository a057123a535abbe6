// Package guard keeps a file system answering whose handlers may wait for ever, as for a disk that is gone.
//
// A [Guard] is a fuse.RawFileSystem around another one. Every request that may wait has an answer within a time: an error, if its
// handler has not ended. The handler is left to itself; the kernel ignores its answer, and the Guard undoes what it did. A handler that
// panics is an error to its reader. With [Limits], handlers bound how many of them use the files of a split at a time.
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

// A FileSystem is the file system behind a Guard. The channel passed to its handlers is closed when
// the request times out, and the Guard answers it instead.
type FileSystem interface {
	fuse.RawFileSystem

	// Split returns the number of the split that a node belongs to, starting at 1, or 0 if it
	// belongs to none.
	Split(node uint64) int

	// GiveBack undoes the side effects of a request that the Guard answers with an error: it
	// returns the batch number of a read to the cursor. For all other requests, the Guard calls
	// Answered when the handler has ended.
	GiveBack(id uint64)
	Answered(id uint64)

	// CountRead adds the data in a reply to the counters. The Guard calls it once for each
	// read that succeeds in time, before the reply is sent. If the read has timed out, the
	// Guard calls DiscardRead instead, because its reader already has an error.
	CountRead(reply fuse.ReadResult)
	DiscardRead(reply fuse.ReadResult)

	// Fault logs the error of a request, counts the request as failed if it was not counted yet,
	// and returns the errno.
	Fault(header *fuse.InHeader, err error) fuse.Status
}

// A Guard guards a FileSystem.
//
// Lock order: mu, then the locks of GiveBack and Answered.
type Guard struct {
	FileSystem
	o Options

	mu       sync.Mutex
	requests []*request // under way; guarded by mu, as what they hold is, and the attempts of Shared
	expired  int        // of requests, how many were answered in their handlers' place; guarded by mu
	free     []*request // that were used and are not now; guarded by mu
	stopped  bool       // nothing is answered any more; guarded by mu
}

// Options are what a Guard works with.
type Options struct {
	Splits   int // numbers of splits are 0 to Splits
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
	pages    pages
}

// pages are the bytes of a file that a request reads for the page cache, or none.
type pages struct{ from, to uint64 }

const (
	// Shared shows splits whose requests wait for so long.
	longWait = time.Second
	// The kernel repeats a failed read for the page cache again and again for some mappings: this leaves it little of a processor.
	pageCachePause = time.Millisecond
)

var errExhausted = fmt.Errorf("given up: %d processes ended by themselves while this had no answer", state.MaxAttempts)

// New makes a Guard around a file system. Run must run too.
func New(inner FileSystem, o Options) *Guard {
	return &Guard{FileSystem: inner, o: o}
}

func (o *Options) tick() time.Duration { return min(o.Timeout/8, longWait/4) }

func (g *Guard) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return g.answer(header, pages{},
		func(late <-chan struct{}) fuse.Status { return g.FileSystem.Lookup(late, header, name, out) },
		nil,
		func() { g.Forget(out.NodeId, 1) })
}

func (g *Guard) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.answer(&in.InHeader, pages{},
		func(late <-chan struct{}) fuse.Status { return g.FileSystem.GetAttr(late, in, out) },
		nil,
		func() {})
}

func (g *Guard) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.answer(&in.InHeader, pages{},
		func(late <-chan struct{}) fuse.Status { return g.FileSystem.Open(late, in, out) },
		nil,
		func() { g.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh}) })
}

func (g *Guard) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (result fuse.ReadResult, status fuse.Status) {
	var filled pages
	if ForPageCache(in) {
		filled = pages{in.Offset, in.Offset + uint64(in.Size)}
	}
	status = g.answer(&in.InHeader, filled,
		func(late <-chan struct{}) (status fuse.Status) {
			result, status = g.FileSystem.Read(late, in, buf)
			return status
		},
		func() { g.CountRead(result) },
		func() { g.DiscardRead(result) }) // GiveBack did the rest
	if !status.Ok() && ForPageCache(in) {
		time.Sleep(pageCachePause)
	}
	return result, status
}

// ForPageCache tells a read that fills the page cache, for sendfile or a mapping or a read(2) of a file that is cached, from one
// that is a read(2) itself: only the latter has a lock owner.
func ForPageCache(in *fuse.ReadIn) bool { return in.ReadFlags&fuse.READ_LOCKOWNER == 0 }

// answer handles a request. If handle succeeds in time, answer calls count, unless count is nil or
// an earlier worker has already counted the request. If handle succeeds after the request has timed
// out, answer calls undo to reverse what handle did.
func (g *Guard) answer(header *fuse.InHeader, of pages, handle func(late <-chan struct{}) fuse.Status, count, undo func()) (status fuse.Status) {
	r, err := g.begin(header, of)
	if err != nil {
		return g.Fault(header, err)
	}
	defer func() {
		if p := recover(); p != nil {
			g.GiveBack(header.Unique)
			status = g.o.Panicked(p)
		}
		late := g.end(r)
		switch {
		case !status.Ok():
		case late:
			undo()
		case count != nil:
			g.o.Shared.CountOnce(header.Unique, count)
		}
	}()
	return handle(r.late)
}

// begin notes that a request begins. It returns an error if the request should not be handled; otherwise end must follow.
func (g *Guard) begin(header *fuse.InHeader, of pages) (*request, error) {
	id, split := header.Unique, g.Split(header.NodeId)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.o.Shared.Exhausted(id) {
		g.noteAnswer(id)
		return nil, errExhausted
	}
	if g.expired > 0 && g.isAwaited(header.NodeId, of) {
		g.noteAnswer(id)
		return nil, g.lateError()
	}
	r := g.unused()
	*r = request{id: id, node: header.NodeId, split: split, index: len(g.requests), late: r.late, pages: of}
	g.requests = append(g.requests, r)
	return r, nil
}

// isAwaited says whether a late request, whose handler has not ended, reads some of these pages. The kernel asks anew for each reader that
// waits for them, one after the other, and each would wait for all of its time. The caller holds mu.
func (g *Guard) isAwaited(node uint64, of pages) bool {
	return slices.ContainsFunc(g.requests, func(r *request) bool {
		return r.expired && r.node == node && r.pages.from < of.to && of.from < r.pages.to
	})
}

// unused returns a request whose channel is open. The caller holds mu.
func (g *Guard) unused() *request {
	last := len(g.free) - 1
	if last < 0 {
		return &request{late: make(chan struct{})}
	}
	r := g.free[last]
	g.free = g.free[:last]
	return r
}

func (g *Guard) end(r *request) (late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.requests) - 1
	g.requests[r.index] = g.requests[last]
	g.requests[r.index].index = r.index
	g.requests[last] = nil
	g.requests = g.requests[:last]
	if r.expired {
		g.expired--
		return true // r is not used again: its channel is closed
	}
	g.Answered(r.id)
	g.noteAnswer(r.id)
	g.free = append(g.free, r)
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
	for _, header := range g.expire() {
		g.Fault(&header, g.lateError())
	}
}

func (g *Guard) lateError() error {
	return fmt.Errorf("the token files gave no answer within %v, or readers asked too much of them (%w)", g.o.Timeout, syscall.ETIMEDOUT)
}

// expire answers the requests that have waited too long, and returns their headers. It records in
// the shared state which splits have kept a request waiting for long.
func (g *Guard) expire() (late []fuse.InHeader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil
	}
	longest := make([]time.Duration, g.o.Splits+1)
	for _, r := range g.requests {
		r.ticks++
		waited := time.Duration(r.ticks) * g.o.tick()
		longest[r.split] = max(longest[r.split], waited)
		if !r.expired && waited > g.o.Timeout {
			r.expired = true
			g.expired++
			close(r.late)
			g.GiveBack(r.id)
			g.o.Answer(r.id, syscall.ETIMEDOUT) // under the lock, so that the handler does not answer before
			g.noteAnswer(r.id)
			late = append(late, fuse.InHeader{NodeId: r.node, Unique: r.id})
		}
	}
	for split, waited := range longest {
		since := int64(0)
		if waited >= longWait {
			since = clock.Now() - int64(waited)
		}
		g.o.Shared.Sequences[split].Waiting.Store(since)
	}
	return late
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
