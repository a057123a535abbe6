package guard

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
)

// Limits bound, for each split, the requests that use its token files at a time, and the memory of their replies. A request beyond
// them waits, first come, first served. Files that give no answer therefore keep only their own split waiting, a reader of few rows
// does not wait for readers of many, and threads and memory are bounded however many readers there are.
type Limits struct {
	splits   []split // by number; of number 0 no request reads rows
	maxStuck int
}

type split struct {
	short, long class               // requests of up to shortRows, and of more
	ahead       *semaphore.Weighted // batches that are made ahead at a time
	maxReplies  int64               // bytes
	waiting     atomic.Int64        // requests
	taken       atomic.Int64        // of maxReplies
}

// A class is the limits of requests of one length.
type class struct {
	slots   *semaphore.Weighted // for requests; each may take a thread, which waits for a disk
	replies *semaphore.Weighted // for bytes of replies
}

const (
	shortRows = 64
	// So many short requests are divided among the splits, at most maxSlots to each, or two for each processor, and half as many
	// long ones and batches made ahead: a short request waits for a processor that these have.
	allSlots = 128
	maxSlots = 32
	// So many requests of a split may wait. Each takes some kilobytes.
	maxWaiting = 4096
	// Replies up to this size do not count.
	smallReply = 64 << 10
)

var errTooMany = fmt.Errorf("more than %d requests of one split wait for an answer (%w)", maxWaiting, syscall.ETIMEDOUT)

// NewLimits makes the limits of so many splits, whose replies may take so many bytes together.
func NewLimits(splits int, replyBytes int64) *Limits {
	n := int64(max(splits, 1))
	slots := shortSlots(n)
	l := &Limits{splits: make([]split, n+1), maxStuck: int(max(1, min(maxStuck, slots/2)))}
	for i := range l.splits {
		s := &l.splits[i]
		s.maxReplies = max(2*mount.MaxRequest, replyBytes/n)
		s.short = class{semaphore.NewWeighted(slots), semaphore.NewWeighted(s.maxReplies / 2)}
		s.long = class{semaphore.NewWeighted(max(1, slots/2)), semaphore.NewWeighted(s.maxReplies / 2)}
		s.ahead = semaphore.NewWeighted(max(1, slots/2))
	}
	return l
}

// shortSlots is how many short requests of one of n splits may use its files at a time.
func shortSlots(n int64) int64 {
	return max(1, min(allSlots/n, max(maxSlots, 2*int64(runtime.GOMAXPROCS(0)))))
}

type held struct {
	split *split
	class *class
	slots int64
	bytes int64
}

// acquire waits until a request of so many rows may use the files of a split, or is late. The reply has so many bytes, in buf.
func (l *Limits) acquire(split int, rows int64, bytes int, buf []byte, late <-chan struct{}) (h held, err error) {
	s := &l.splits[split]
	if rows == 0 {
		return h, nil
	}
	h.split, h.class = s, &s.short
	if rows > shortRows {
		h.class = &s.long
	}
	if bytes > smallReply {
		if err := s.wait(h.class.replies, int64(bytes), buf, late); err != nil {
			return h, err
		}
		h.bytes = int64(bytes)
		s.taken.Add(h.bytes)
	}
	if err = s.wait(h.class.slots, 1, buf, late); err == nil {
		h.slots = 1
	}
	return h, err
}

func (s *split) wait(of *semaphore.Weighted, n int64, buf []byte, late <-chan struct{}) error {
	if of.TryAcquire(n) {
		return nil
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > maxWaiting {
		return errTooMany
	}
	if s.isMuch(buf) {
		freePages(buf)
	}
	if of.Acquire(&fuse.Context{Cancel: late}, n) != nil {
		return ErrLate
	}
	return nil
}

func (h *held) release() {
	if h.slots > 0 {
		h.class.slots.Release(h.slots)
	}
	if h.bytes > 0 {
		h.split.taken.Add(-h.bytes)
		h.class.replies.Release(h.bytes)
	}
}

// TryAhead says whether a batch of a split may be made ahead. EndAhead must follow then. It may not while requests wait.
func (l *Limits) TryAhead(split int) bool {
	s := &l.splits[split]
	return s.waiting.Load() == 0 && s.ahead.TryAcquire(1)
}

// EndAhead notes that a batch was made ahead.
func (l *Limits) EndAhead(split int) { l.splits[split].ahead.Release(1) }

// Use returns the bytes of replies that are taken, and how many requests wait.
func (l *Limits) Use() (replyBytes int64, waiting int) {
	for i := range l.splits {
		replyBytes += l.splits[i].taken.Load()
		waiting += int(l.splits[i].waiting.Load())
	}
	return replyBytes, waiting
}

// isMuch says whether buffers like buf, for all requests that wait, would be a quarter of what replies may take, or more.
func (s *split) isMuch(buf []byte) bool { return s.waiting.Load()*int64(len(buf)) > s.maxReplies/4 }

// Trim frees the pages of a reply that was sent, while requests that wait have many such buffers: go-fuse keeps them.
func (l *Limits) Trim(split int, buf []byte) {
	if l.splits[split].isMuch(buf) {
		freePages(buf)
	}
}

// freePages gives the memory of a buffer back until it is written to. What it holds is lost.
func freePages(buf []byte) {
	page := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) & (page - 1)
	if to := len(buf) - (len(buf)-from)&(page-1); from < to {
		unix.Madvise(buf[from:to], unix.MADV_DONTNEED)
	}
}
