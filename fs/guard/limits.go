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

// A split limits the requests that use its token files at the same time, and the memory of their
// replies. Requests beyond the limits wait in order of arrival. If token files do not respond, only
// the readers of their split wait; a reader of few rows does not wait for readers of many; and the
// number of threads and the memory are bounded however many readers there are.
//
// Guard.mu guards a split.
type split struct {
	short, long class        // limits of requests for up to shortRows rows, and for more
	prefetches  int          // prefetches that may still begin
	maxReplies  int64        // memory of the replies of both classes, in bytes
	waiting     atomic.Int64 // requests in both queues; written with Guard.mu held
}

// A class has the limits of requests of similar length.
type class struct {
	permits int        // requests that may still begin; each may block a thread that waits for a disk
	replies int64      // memory for more replies, in bytes
	queue   []*request // waiting requests, in order of arrival
}

const (
	shortRows = 64

	// allPermits permits are divided among the splits for short requests, at most maxPermits for each
	// split, or two for each processor. Long requests and prefetches of a split get half as many
	// permits each, because short requests wait for the processors that they use.
	allPermits = 128
	maxPermits = 32

	maxWaiting = 4096     // waiting requests of a split; each takes a few kilobytes
	smallReply = 64 << 10 // bytes up to which a reply does not count
)

var errTooMany = fmt.Errorf("more than %d requests of one split wait for an answer (%w)", maxWaiting, syscall.ETIMEDOUT)

// newSplits returns the limits of splits 0 to n. Their replies share replyBytes.
func newSplits(n int, replyBytes int64) []split {
	slots := shortPermits(n)
	maxReplies := max(2*mount.MaxRequest, replyBytes/int64(max(n, 1)))
	splits := make([]split, n+1)
	for i := range splits {
		s := &splits[i]
		s.short = class{permits: slots, replies: maxReplies / 2}
		s.long = class{permits: max(1, slots/2), replies: maxReplies / 2}
		s.prefetches = max(1, slots/2)
		s.maxReplies = maxReplies
	}
	return splits
}

// shortPermits returns how many short requests of one of n splits may run at the same time.
func shortPermits(n int) int {
	return max(1, min(allPermits/max(n, 1), max(maxPermits, 2*runtime.GOMAXPROCS(0))))
}

// needs returns the class of a request, nil if it uses no token file, and how many bytes its reply
// takes from class.replies.
func (s *split) needs(cost Cost) (c *class, reply int64) {
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

// fits reports whether a new request need not wait. A small reply passes those that wait for memory.
func (c *class) fits(reply int64) bool {
	return c.permits > 0 && (reply == 0 || reply <= c.replies && len(c.queue) == 0)
}

// next removes the request that is to be admitted next from the queue, and returns it. It returns
// nil if none can be admitted. If the first reply is too large for now, only small ones pass it.
func (c *class) next() *request {
	if c.permits == 0 {
		return nil
	}
	room := c.replies
	for i, r := range c.queue {
		if r.reply <= room && !r.timedOut { // a request that timed out leaves the queue by itself
			c.queue = slices.Delete(c.queue, i, i+1)
			return r
		}
		room = 0
	}
	return nil
}

// take gives a request n times what it needs of its class; -1 returns it. The caller holds mu, as for
// the following methods.
func (g *Guard) take(r *request, n int) {
	r.class.permits -= n
	if bytes := int64(n) * r.reply; bytes != 0 {
		r.class.replies -= bytes
		g.o.Shared.ReplyBytes.Add(bytes)
	}
}

// release returns what a request holds, or removes it from the queue, and admits those that waited
// for it.
func (g *Guard) release(r *request) {
	switch {
	case r.class == nil:
		return
	case r.waits: // timed out
		r.class.queue = slices.DeleteFunc(r.class.queue, func(other *request) bool { return other == r })
		g.addWaiting(r.split, -1)
	default:
		g.take(r, -1)
	}
	g.admit(r.class)
}

func (g *Guard) addWaiting(split int, n int64) {
	g.splits[split].waiting.Add(n)
	g.o.Shared.Gauges.Waiting.Add(n)
}

// admit admits the requests in a queue as far as the limits allow.
func (g *Guard) admit(c *class) {
	for r := c.next(); r != nil; r = c.next() {
		r.waits = false
		g.addWaiting(r.split, -1)
		g.take(r, 1)
		r.admitted <- struct{}{}
	}
}

// await waits until a request in a queue is admitted, and reports whether it was. Otherwise it timed
// out. The caller does not hold mu. What buf holds may be lost.
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

// TryPrefetch reports whether a prefetch of a split may begin. If so, EndPrefetch must follow. While
// requests of the split wait, none may begin.
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

// EndPrefetch records the end of a prefetch.
func (g *Guard) EndPrefetch(split int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.splits[split].prefetches++
}

// isCrowded reports whether buffers like buf, one for each waiting request, would take a quarter of
// the memory for replies.
func (s *split) isCrowded(buf []byte) bool { return s.waiting.Load()*int64(len(buf)) > s.maxReplies/4 }

// trim returns a reply that frees the pages of its buffer when it has been sent, if waiting requests
// have many such buffers: go-fuse keeps them.
func (s *split) trim(reply fuse.ReadResult, buf []byte) fuse.ReadResult {
	if sliced, ok := reply.(sliced); ok && s.isCrowded(buf) {
		return &trimmed{sliced, buf}
	}
	return reply
}

// A sliced reply is sent from its slices. go-fuse calls Done of any other reply before it is sent.
type sliced interface {
	fuse.ReadResult
	Slices() ([][]byte, fuse.Status)
}

// A trimmed reply frees the pages of its buffer after it was sent.
type trimmed struct {
	sliced
	buf []byte
}

func (t *trimmed) Done() {
	freePages(t.buf) // first, because Done may prefetch
	t.sliced.Done()
}

// freePages returns the pages that lie within buf to the kernel until they are written to. Their
// content is lost.
func freePages(buf []byte) {
	page := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) & (page - 1)
	if to := len(buf) - (len(buf)-from)&(page-1); from < to {
		unix.Madvise(buf[from:to], unix.MADV_DONTNEED)
	}
}
