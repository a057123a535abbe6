package guard

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
)

// A split limits how many requests use its token files at the same time, and the memory of their
// replies. Other requests wait in order of arrival, but small replies need not wait for memory. If
// token files do not respond, only readers of their split wait. Readers of few rows don't wait for
// readers of many.
//
// Guard.mu guards a split, except that shouldFree reads waiting without mu.
type split struct {
	shortClass, longClass class // requests of up to shortRows rows, and longer ones
	freePrefetches        int
	maxReplyBytes         int64        // limit for both classes
	waiting               atomic.Int64 // requests in both queues
}

// A class limits requests of similar length.
type class struct {
	freePermits    int // each admitted request takes one, because it may block a thread
	freeReplyBytes int64
	queue          []*request // oldest first
}

const (
	shortRows = 64 // most rows of a short request

	// The splits share allPermits permits for short requests. Each split gets at most maxPermits or
	// two per processor, whichever is more. It gets half as many for long requests and half as many
	// for prefetches, because both take processors from short requests.
	allPermits = 128
	maxPermits = 32

	maxWaiting = 4096     // most waiting requests per split; each takes a few kilobytes
	smallReply = 64 << 10 // largest reply that takes nothing from freeReplyBytes, in bytes
)

var errTooMany = fmt.Errorf("more than %d requests for one split are already waiting (%w)",
	maxWaiting, syscall.ETIMEDOUT)

// newSplits returns splits 0 to n, and divides replyBytes among them.
func newSplits(n int, replyBytes int64) []split {
	permits := shortPermits(n)
	maxReplyBytes := max(2*mount.MaxRequest, replyBytes/int64(max(n, 1)))
	splits := make([]split, n+1)
	for i := range splits {
		s := &splits[i]
		s.shortClass = class{freePermits: permits, freeReplyBytes: maxReplyBytes / 2}
		s.longClass = class{freePermits: max(1, permits/2), freeReplyBytes: maxReplyBytes / 2}
		s.freePrefetches = max(1, permits/2)
		s.maxReplyBytes = maxReplyBytes
	}
	return splits
}

// shortPermits returns how many permits for short requests each of n splits gets.
func shortPermits(n int) int {
	return max(1, min(allPermits/max(n, 1), max(maxPermits, 2*runtime.GOMAXPROCS(0))))
}

// classify returns the class of a request, or nil if no limits apply, and the bytes that its reply
// takes from class.freeReplyBytes.
func (s *split) classify(cost Cost) (c *class, replyBytes int64) {
	switch {
	case cost.Rows == 0:
		return nil, 0
	case cost.Rows > shortRows:
		c = &s.longClass
	default:
		c = &s.shortClass
	}
	if cost.ReplyBytes > smallReply {
		replyBytes = int64(cost.ReplyBytes)
	}
	return c, replyBytes
}

// fits reports whether a new request can be admitted immediately. Small replies overtake requests
// that wait for memory.
func (c *class) fits(replyBytes int64) bool {
	return c.freePermits > 0 && (replyBytes == 0 || replyBytes <= c.freeReplyBytes && len(c.queue) == 0)
}

// dequeue removes and returns the next request that can be admitted, or nil. While the first
// request waits for memory, only small replies overtake it.
func (c *class) dequeue() *request {
	if c.freePermits == 0 {
		return nil
	}
	room := c.freeReplyBytes
	for i, r := range c.queue {
		if r.replyBytes <= room && !r.isAbandoned { // release will remove abandoned requests
			c.queue = slices.Delete(c.queue, i, i+1)
			return r
		}
		room = 0
	}
	return nil
}

// reserve takes the permit and memory of a request from its class if n is 1, or returns them if n
// is -1. The callers of reserve, release, addWaiting and admit hold mu.
func (g *Guard) reserve(r *request, n int) {
	r.class.freePermits -= n
	if bytes := int64(n) * r.replyBytes; bytes != 0 {
		r.class.freeReplyBytes -= bytes
		g.opts.Shared.ReplyBytes.Add(bytes)
	}
}

// release undoes reserve or, if the request is still queued, removes it from the queue. Then it
// admits others.
func (g *Guard) release(r *request) {
	switch {
	case r.class == nil:
		return
	case r.isQueued: // it was abandoned in the queue
		r.class.queue = slices.DeleteFunc(r.class.queue, func(other *request) bool { return other == r })
		g.addWaiting(r.split, -1)
	default:
		g.reserve(r, -1)
	}
	g.admit(r.class)
}

func (g *Guard) addWaiting(split int, n int64) {
	g.splits[split].waiting.Add(n)
	g.opts.Shared.Gauges.Waiting.Add(n)
}

func (g *Guard) admit(c *class) {
	for r := c.dequeue(); r != nil; r = c.dequeue() {
		r.isQueued = false
		g.addWaiting(r.split, -1)
		g.reserve(r, 1)
		r.admitted <- struct{}{}
	}
}

// await waits for the admission of a queued request. It returns false if the request is abandoned.
// The caller does not hold mu. The content of buf may be lost.
func (g *Guard) await(r *request, buf []byte) bool {
	if g.splits[r.split].shouldFree(buf) {
		freePages(buf)
	}
	select {
	case <-r.admitted:
		return true
	case <-r.cancel:
		return false
	}
}

// TryPrefetch reports whether a prefetch of a split may start now. If it returns true, the caller
// must call EndPrefetch. It returns false while requests of the split are waiting, because they
// come first.
func (g *Guard) TryPrefetch(split int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.splits[split]
	if s.freePrefetches == 0 || s.waiting.Load() > 0 {
		return false
	}
	s.freePrefetches--
	return true
}

// EndPrefetch returns the permit of a prefetch.
func (g *Guard) EndPrefetch(split int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.splits[split].freePrefetches++
}

// shouldFree reports whether buffers of buf's size for all waiting requests would take more than a
// quarter of the split's memory for replies. It needs no lock, because an estimate suffices.
func (s *split) shouldFree(buf []byte) bool {
	return s.waiting.Load()*int64(len(buf)) > s.maxReplyBytes/4
}

// freeWhenSent returns reply or, if shouldFree, one that also frees the pages of buf once it is
// sent. go-fuse itself never frees its buffers.
func (s *split) freeWhenSent(reply fuse.ReadResult, buf []byte) fuse.ReadResult {
	if sliced, ok := reply.(slicedReply); ok && s.shouldFree(buf) {
		return &freeingReply{sliced, buf}
	}
	return reply
}

// A slicedReply is a reply that go-fuse sends directly from its slices, before it calls Done. For
// any other reply, go-fuse calls Done first.
type slicedReply interface {
	fuse.ReadResult
	Slices() ([][]byte, fuse.Status)
}

type freeingReply struct {
	slicedReply
	buf []byte
}

func (r *freeingReply) Done() {
	freePages(r.buf) // first, because Done may prefetch, which takes long
	r.slicedReply.Done()
}

// freePages returns the whole pages within buf to the kernel. buf can be used again, but loses its
// content.
func freePages(buf []byte) {
	page := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) & (page - 1)
	if to := len(buf) - (len(buf)-from)&(page-1); from < to {
		unix.Madvise(buf[from:to], unix.MADV_DONTNEED)
	}
}
