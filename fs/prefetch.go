package fs

import (
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"batchfs/cache/array"
	"batchfs/fs/mount"
)

// A prefetcher computes batches before they are requested, for readers that read in order, by
// number or through next*. The goroutine that has sent a reply computes the next batches, so a
// sequence without readers costs nothing.
//
// A prefetcher is safe for concurrent use. Lock order: mu, then TryLock of a buffer. A buffer's
// lock is held without mu while its batch is computed or sent.
type prefetcher struct {
	depth    int   // batches to keep ahead of the last one requested; 0 disables prefetching
	maxBytes int64 // limit on the memory of all buffers
	permits  permits
	log      *limitedLog

	mu          sync.Mutex
	readers     []*sequentialReader // least recently used first; guarded by mu, like its elements
	bufferBytes atomic.Int64        // bytes reserved for all buffers; written with mu held
}

// permits limits how many prefetches of each split run at the same time. If TryPrefetch returns
// true, the caller must call EndPrefetch.
type permits interface {
	TryPrefetch(split int) bool
	EndPrefetch(split int)
}

// A sequentialReader holds the batches prefetched for readers that read a BatchList in order, so
// batches of old tokens are never sent for new ones. Readers that are close together share one, and
// may overtake each other.
type sequentialReader struct {
	list         BatchList
	batchSize    int64  // bytes
	next         uint64 // batch after the highest requested since the reader last went back
	nextRepeated uint64 // batch after the last requested below next-1 and not prefetched; 0 if none

	// buffers holds batch k in element k%len(buffers). It is nil until batches are requested in
	// order and there is room for it, and empty if there will never be room for two batches.
	buffers []*batchBuffer
}

// A batchBuffer holds a batch that is prefetched or being prefetched. At first, it is empty.
type batchBuffer struct {
	sync.RWMutex        // write-locked while the batch is computed, read-locked while it is sent
	batch        uint64 // batch number; written only with prefetcher.mu held as well
	valid        bool   // whether bytes holds the whole batch
	bytes        []byte
	sent         atomic.Int64 // bytes sent; notRequested before the first request
}

// isUnsent reports whether no byte of a batch that is being read has been sent.
func (b *batchBuffer) isUnsent() bool { return b.sent.Load() == 0 }

const (
	noNumber     = MaxBatches // number of an empty buffer
	notRequested = -1
	maxReaders   = 256 // if there are more sequentialReaders, an idle one is evicted
)

// acquireBuffer records that batch k of list is being read. If k was prefetched, it returns the
// buffer, which the caller must RUnlock; otherwise the buffer is nil. It waits for a running
// prefetch of k.
func (p *prefetcher) acquireBuffer(list BatchList, k uint64) (*sequentialReader, *batchBuffer) {
	if p.depth == 0 {
		return nil, nil
	}
	r, prefetched := p.recordRequest(list, k)
	if prefetched == nil {
		return r, nil
	}
	prefetched.RLock()
	switch {
	case prefetched.batch != k: // reused
	case !prefetched.valid: // the prefetch failed, so nothing of the buffer is sent
		prefetched.sent.CompareAndSwap(0, notRequested)
	default:
		return r, prefetched
	}
	prefetched.RUnlock()
	return r, nil
}

// recordRequest is like acquireBuffer, but neither waits for a prefetch nor locks the buffer.
func (p *prefetcher) recordRequest(list BatchList, k uint64) (*sequentialReader, *batchBuffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.readerFor(list, k)
	wentBack := k > 0 && k == r.nextRepeated // for example, to repeat an evaluation
	if k >= r.next || wentBack {
		r.next, r.nextRepeated = k+1, 0
		if r.buffers == nil {
			p.allocate(r)
		}
	}
	if len(r.buffers) > 0 {
		if b := r.buffers[k%uint64(len(r.buffers))]; b.batch == k {
			b.sent.CompareAndSwap(notRequested, 0)
			return r, b
		}
	}
	if k+1 < r.next {
		r.nextRepeated = k + 1
	}
	return r, nil
}

// readerFor returns the reader to which a request for batch k belongs, or a new one, and marks it
// as the most recently used. The caller holds mu.
func (p *prefetcher) readerFor(list BatchList, k uint64) *sequentialReader {
	for i, r := range slices.Backward(p.readers) {
		if r.list == list && r.next <= k+array.MaxLag && k <= r.next+uint64(p.depth) {
			if i < len(p.readers)-1 {
				p.readers = append(slices.Delete(p.readers, i, i+1), r)
			}
			return r
		}
	}
	r := &sequentialReader{list: list, batchSize: list.Spec().Batch.Bytes(), next: k + 1}
	p.readers = append(p.readers, r)
	if len(p.readers) > maxReaders {
		p.evict(false)
	}
	return r
}

// evict discards the least recently used reader that is idle and its buffers, but not the reader
// used last or, if forMemory is true, one without buffers. It reports whether it has discarded one.
// The caller holds mu.
func (p *prefetcher) evict(forMemory bool) bool {
	for i, r := range p.readers[:len(p.readers)-1] {
		if n := len(r.buffers); (n > 0 || !forMemory) && r.discardBuffers() {
			p.bufferBytes.Add(-int64(n) * r.batchSize)
			p.readers = slices.Delete(p.readers, i, i+1)
			return true
		}
	}
	return false
}

// discardBuffers discards all buffers of a reader, unless a batch is being computed or sent. It
// reports whether they are discarded.
func (r *sequentialReader) discardBuffers() bool {
	for _, b := range r.buffers {
		if !b.TryLock() {
			return false
		}
		defer b.Unlock()
	}
	for _, b := range r.buffers {
		b.batch = noNumber // for a request that has found the buffer and waits for its lock
	}
	r.buffers = nil
	return true
}

// allocate gives r, the reader used last, its buffers if at least two fit into maxBytes. It evicts
// other readers for them. If too many of these are not idle, r gets none yet. The caller holds mu.
func (p *prefetcher) allocate(r *sequentialReader) {
	n := min(int64(p.depth)+1, p.maxBytes/r.batchSize)
	if n < 2 {
		r.buffers = []*batchBuffer{}
		return
	}
	for p.bufferBytes.Load()+n*r.batchSize > p.maxBytes {
		if !p.evict(true) {
			return
		}
	}
	p.bufferBytes.Add(n * r.batchSize)
	for range n {
		b := &batchBuffer{batch: noNumber}
		b.sent.Store(notRequested)
		r.buffers = append(r.buffers, b)
	}
}

// run prefetches the batches after the last one requested, until none is left or TryPrefetch
// returns false.
func (p *prefetcher) run(r *sequentialReader, split int) {
	for p.permits.TryPrefetch(split) {
		b := p.claim(r)
		if b != nil {
			p.compute(r, b)
		}
		p.permits.EndPrefetch(split)
		if b == nil {
			return
		}
	}
}

// compute fills a claimed buffer and unlocks it. It drops errors and panics, because the request
// for the batch computes it again and reports them.
func (p *prefetcher) compute(r *sequentialReader, b *batchBuffer) {
	defer b.Unlock()
	defer func() {
		if v := recover(); v != nil {
			p.log.tryLog(slog.LevelError, "prefetching a batch panicked; its reader will compute it again", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	b.valid = readInParts(r.list, b.bytes, b.batch) == nil
}

// readInParts reads batch k in parts of mount.MaxRequest bytes, because reading a part of a long
// row takes memory in proportion to the part.
func readInParts(list BatchList, dst []byte, k uint64) error {
	for off := 0; off < len(dst); off += mount.MaxRequest {
		if err := list.Read(dst[off:min(off+mount.MaxRequest, len(dst))], k, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// claim returns a write-locked buffer for one of the next batches that is not prefetched yet, or
// nil if there is none. It does not reuse the buffer of a batch that is partly sent, because the
// reader will request the rest.
func (p *prefetcher) claim(r *sequentialReader) *batchBuffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := uint64(len(r.buffers))
	for k := r.next; k+1 < r.next+n && k < r.list.Spec().Batches; k++ {
		b := r.buffers[k%n]
		if b.batch == k || r.isPartlySent(b, k) || !b.TryLock() {
			continue
		}
		if b.bytes == nil {
			b.bytes = make([]byte, r.batchSize)
		}
		b.batch, b.valid = k, false
		b.sent.Store(notRequested)
		return b
	}
	return nil
}

// isPartlySent reports whether a reader is in the middle of the batch in b. Some readers take only
// the main arrays, so a batch whose main arrays were sent is not partly sent. Neither is a batch
// that is array.MaxLag or more behind k, because its reader has probably stopped.
func (r *sequentialReader) isPartlySent(b *batchBuffer, k uint64) bool {
	sent := b.sent.Load()
	return sent >= 0 && sent < r.list.Spec().Batch.MainBytes() && b.batch+array.MaxLag > k
}
