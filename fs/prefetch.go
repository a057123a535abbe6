package fs

import (
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"batchfs/fs/mount"
)

// A prefetcher makes batches before they are requested: those that follow a batch that was read in order, by number or through
// next. The goroutine that answered a request makes them once the answer is sent, so a cursor without readers costs nothing.
//
// Lock order: mu, then at most TryLock of a buffer. A buffer's lock is held without mu while its batch is made or delivered.
type prefetcher struct {
	batches int   // to hold beyond the last one that was requested
	bytes   int64 // bound on all buffers
	permits permits
	log     *limitedLog

	mu      sync.Mutex
	streams []*stream    // least recently read first; guarded by mu, with their fields
	used    atomic.Int64 // bytes; written with mu held
}

// permits limit how many prefetches of each split run at the same time.
type permits interface {
	// TryPrefetch reports whether a prefetch may begin. If so, EndPrefetch must follow. None may
	// begin while requests of the split wait, because they come first.
	TryPrefetch(split int) bool
	EndPrefetch(split int)
}

// A stream is batches of a sequence that are read in order. Readers may share it, and overtake each other.
type stream struct {
	sequence Batches
	size     int64     // bytes of a batch
	next     uint64    // one more than the highest number that was requested
	ring     []*buffer // batch k in ring[k%len(ring)]; empty until a second batch was read
}

// A buffer holds a batch that was made ahead, or is being made.
type buffer struct {
	sync.RWMutex        // held for writing while the batch is made, for reading while it is delivered
	batch        uint64 // written with prefetcher.mu held too
	ready        bool   // without an error
	bytes        []byte
	delivered    atomic.Int64 // bytes; -1: not requested
}

const (
	maxStreams = 256
	maxBehind  = 64 // batches that a reader may be behind another of the same stream
)

// lookup notes that batch k of s is read. It returns its stream and, if k was made ahead, its buffer, which the caller RUnlocks.
func (p *prefetcher) lookup(s Batches, k uint64) (*stream, *buffer) {
	if p.batches == 0 {
		return nil, nil
	}
	p.mu.Lock()
	st := p.find(s, k)
	if k >= st.next {
		st.next = k + 1
		if st.ring == nil {
			p.makeRing(st)
		}
	}
	var b *buffer
	if n := uint64(len(st.ring)); n > 0 && st.ring[k%n].batch == k {
		b = st.ring[k%n]
		b.delivered.CompareAndSwap(-1, 0)
	}
	p.mu.Unlock()
	if b == nil {
		return st, nil
	}
	b.RLock() // may wait for the batch to be made
	if b.batch != k || !b.ready {
		b.RUnlock()
		return st, nil
	}
	return st, b
}

// find returns the stream that batch k belongs to, a new one if it follows none. The caller holds mu, as for the next two.
func (p *prefetcher) find(s Batches, k uint64) *stream {
	for i, st := range slices.Backward(p.streams) {
		if st.sequence == s && st.next <= k+maxBehind && k <= st.next+uint64(p.batches) {
			if i < len(p.streams)-1 {
				p.streams = append(slices.Delete(p.streams, i, i+1), st)
			}
			return st
		}
	}
	if len(p.streams) == maxStreams {
		p.dropOldest()
	}
	st := &stream{sequence: s, size: s.Spec().Batch.Bytes(), next: k + 1}
	p.streams = append(p.streams, st)
	return st
}

func (p *prefetcher) dropOldest() {
	st := p.streams[0]
	p.used.Add(-int64(len(st.ring)) * st.size)
	st.ring = []*buffer{} // it may be in use
	p.streams = slices.Delete(p.streams, 0, 1)
}

func (p *prefetcher) makeRing(st *stream) {
	n := min(int64(p.batches)+1, p.bytes/st.size)
	st.ring = []*buffer{}
	if n < 2 {
		return
	}
	for p.used.Load()+n*st.size > p.bytes {
		p.dropOldest()
	}
	p.used.Add(n * st.size)
	for range n {
		b := &buffer{batch: MaxBatches}
		b.delivered.Store(-1)
		st.ring = append(st.ring, b)
	}
}

func (p *prefetcher) prefetchNext(st *stream, split int) {
	for p.permits.TryPrefetch(split) {
		b := p.claim(st)
		if b != nil {
			p.compute(st, b)
		}
		p.permits.EndPrefetch(split)
		if b == nil {
			return
		}
	}
}

// compute computes the batch of a buffer. An error or a panic is lost here: the reader of that batch makes it again, and meets it.
func (p *prefetcher) compute(st *stream, b *buffer) {
	defer b.Unlock()
	defer func() {
		if r := recover(); r != nil {
			p.log.limited(slog.LevelError, "prefetching a batch panicked; its reader will make it again", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	b.ready = readInParts(st.sequence, b.bytes, b.batch) == nil
}

// readInParts is Read for a whole batch that no request waits for. To read a part of a long row takes memory for that part, so
// parts are as long as requests.
func readInParts(s Batches, dst []byte, k uint64) error {
	for off := 0; off < len(dst); off += mount.MaxRequest {
		if err := s.Read(dst[off:min(off+mount.MaxRequest, len(dst))], k, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// claim returns the buffer for one of the next batches that is neither made nor being made, locked for writing, or nil.
func (p *prefetcher) claim(st *stream) *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, main := uint64(len(st.ring)), st.sequence.Spec().Batch.MainBytes() // some readers read no more
	for k := st.next; k+1 < st.next+n && k < MaxBatches; k++ {
		b := st.ring[k%n]
		part := b.delivered.Load()
		inTheMiddle := part >= 0 && part < main && b.batch+maxBehind > k // of being read
		if b.batch == k || inTheMiddle || !b.TryLock() {
			continue
		}
		if b.bytes == nil {
			b.bytes = make([]byte, st.size)
		}
		b.batch, b.ready = k, false
		b.delivered.Store(-1)
		return b
	}
	return nil
}
