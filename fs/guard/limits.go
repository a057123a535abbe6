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
// replies. Requests beyond the limits wait in order of arrival. If token files do not respond, only
// the readers of their split wait. Readers of few rows don't wait for readers of many. The number
// of readers is not limited, but their threads and memory are.
//
// Guard.mu guards a split. waiting is atomic because replies check it without mu.
type split struct {
	short, long class        // limits for requests of up to shortRows rows, and for longer ones
	prefetches  int          // free permits for prefetches
	maxReplies  int64        // memory for the replies of both classes, in bytes
	waiting     atomic.Int64 // requests in both queues; written with Guard.mu held
}

// A class limits requests of similar length.
type class struct {
	permits int        // free permits; each admitted request may block a thread
	replies int64      // free memory for replies, in bytes
	queue   []*request // waiting requests, in order of arrival
}

const (
	shortRows = 64 // rows of the longest short request

	// allPermits permits for short requests are divided among the splits. Each split gets at most
	// maxPermits or two per processor, whichever is more. It gets half as many for long requests
	// and for prefetches, because these take processors from short requests.
	allPermits = 128
	maxPermits = 32

	maxWaiting = 4096     // waiting requests per split; each takes a few kilobytes
	smallReply = 64 << 10 // size of the largest reply that is not limited, in bytes
)

var errTooMany = fmt.Errorf("more than %d requests of one split wait for an answer (%w)", maxWaiting, syscall.ETIMEDOUT)

// newSplits returns the limits of splits 0 to n, and divides replyBytes among them.
func newSplits(n int, replyBytes int64) []split {
	permits := shortPermits(n)
	maxReplies := max(2*mount.MaxRequest, replyBytes/int64(max(n, 1)))
	splits := make([]split, n+1)
	for i := range splits {
		s := &splits[i]
		s.short = class{permits: permits, replies: maxReplies / 2}
		s.long = class{permits: max(1, permits/2), replies: maxReplies / 2}
		s.prefetches = max(1, permits/2)
		s.maxReplies = maxReplies
	}
	return splits
}

// shortPermits returns the number of permits for short requests that each of n splits gets.
func shortPermits(n int) int {
	return max(1, min(allPermits/max(n, 1), max(maxPermits, 2*runtime.GOMAXPROCS(0))))
}

// classify returns the class of a request, or nil if it uses no token file, and the bytes that its
// reply takes from class.replies.
func (s *split) classify(cost Cost) (c *class, reply int64) {
	switch {
	case cost.Rows == 0:
		return nil, 0
	case cost.Rows > shortRows:
		c = &s.long
	default:
		c = &s.short
	}
	if cost.Reply > smallReply {
		reply = int64(cost.Reply)
	}
	return c, reply
}

// fits reports whether a new request can start immediately. Small replies overtake requests that
// wait for memory.
func (c *class) fits(reply int64) bool {
	return c.permits > 0 && (reply == 0 || reply <= c.replies && len(c.queue) == 0)
}

// dequeue removes the next request that can be admitted from the queue and returns it, or nil if
// there is none. While the first request waits for memory, only small replies overtake it.
func (c *class) dequeue() *request {
	if c.permits == 0 {
		return nil
	}
	room := c.replies
	for i, r := range c.queue {
		if r.reply <= room && !r.timedOut { // release dequeues those that timed out
			c.queue = slices.Delete(c.queue, i, i+1)
			return r
		}
		room = 0
	}
	return nil
}

// reserve takes the permit and reply memory of a request from its class, or returns them if n is -1
// instead of 1. The caller holds mu; so do the callers of release, addWaiting and admit.
func (g *Guard) reserve(r *request, n int) {
	r.class.permits -= n
	if bytes := int64(n) * r.reply; bytes != 0 {
		r.class.replies -= bytes
		g.opts.Shared.ReplyBytes.Add(bytes)
	}
}

// release returns what a request has reserved, or removes it from the queue, and admits requests
// that waited for it.
func (g *Guard) release(r *request) {
	switch {
	case r.class == nil:
		return
	case r.waits: // it timed out in the queue
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

// admit admits queued requests as far as the limits allow.
func (g *Guard) admit(c *class) {
	for r := c.dequeue(); r != nil; r = c.dequeue() {
		r.waits = false
		g.addWaiting(r.split, -1)
		g.reserve(r, 1)
		r.admitted <- struct{}{}
	}
}

// await waits until a queued request is admitted and returns true, or returns false if the request
// times out. The caller does not hold mu. The content of buf may be lost.
func (g *Guard) await(r *request, buf []byte) bool {
	if g.splits[r.split].isCrowded(buf) {
		freePages(buf)
	}
	select {
	case <-r.admitted:
		return true
	case <-r.cancel:
		return false
	}
}

// TryPrefetch reports whether a prefetch of a split may begin. If it returns true, the caller must
// call EndPrefetch. It returns false while requests of the split are waiting, because they come
// first.
func (g *Guard) TryPrefetch(split int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.splits[split]
	if s.prefetches == 0 || s.waiting.Load() > 0 {
		return false
	}
	s.prefetches--
	return true
}

// EndPrefetch returns the permit of a prefetch.
func (g *Guard) EndPrefetch(split int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.splits[split].prefetches++
}

// isCrowded reports whether a buffer like buf for each waiting request would take more than a
// quarter of the memory for replies. It needs no lock, because an estimate suffices.
func (s *split) isCrowded(buf []byte) bool { return s.waiting.Load()*int64(len(buf)) > s.maxReplies/4 }

// freeWhenSent wraps reply so that the pages of its buffer are freed after it is sent, if the
// buffers of waiting requests take much memory. go-fuse itself never frees its buffers.
func (s *split) freeWhenSent(reply fuse.ReadResult, buf []byte) fuse.ReadResult {
	if sliced, ok := reply.(slicedReply); ok && s.isCrowded(buf) {
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

// A freeingReply frees the pages of its buffer after it is sent.
type freeingReply struct {
	slicedReply
	buf []byte
}

func (t *freeingReply) Done() {
	freePages(t.buf) // before Done, which may prefetch and take long
	t.slicedReply.Done()
}

// freePages returns the whole pages within buf to the kernel. buf stays usable, but their content
// is lost.
func freePages(buf []byte) {
	page := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) & (page - 1)
	if to := len(buf) - (len(buf)-from)&(page-1); from < to {
		unix.Madvise(buf[from:to], unix.MADV_DONTNEED)
	}
}
