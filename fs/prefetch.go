package fs

import (
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"batchfs/fs/mount"
)

// A prefetcher computes batches before they are requested, for readers that read in order, by
// number or through next*. The goroutine that has sent a reply computes the next batches, so a
// sequence without readers costs nothing.
//
// A prefetcher is safe for concurrent use. Lock order: mu, then TryLock of a slot. A slot's lock is
// held without mu while its batch is computed or sent.
type prefetcher struct {
	depth    int   // batches to keep ahead of the last one requested; 0 disables prefetching
	maxBytes int64 // limit on the memory of all slots
	permits  permits
	log      *limitedLog

	mu        sync.Mutex
	readers   []*sequentialReader // least recently used first; mu guards it and its elements
	slotBytes atomic.Int64        // bytes reserved for all slots; written with mu held
}

// permits limits how many prefetches of each split run at the same time. If TryPrefetch returns
// true, the caller must call EndPrefetch.
type permits interface {
	TryPrefetch(split int) bool
	EndPrefetch(split int)
}

// A sequentialReader holds the batches prefetched for readers that read a sequence in order.
// Readers that are close together share one, and may overtake each other.
type sequentialReader struct {
	sequence  Batches
	batchSize int64   // bytes
	next      uint64  // one more than the highest batch requested since the reader last went back
	again     uint64  // one more than the last batch requested below next; 0 if there is none
	slots     []*slot // batch k is in slots[k%len(slots)]; nil until a second batch is requested
}

// A slot holds one batch, either prefetched or being prefetched, or is still empty.
type slot struct {
	sync.RWMutex        // write-locked while the batch is computed, read-locked while it is sent
	batch        uint64 // written with prefetcher.mu held as well
	valid        bool   // whether bytes holds the whole batch
	bytes        []byte
	sent         atomic.Int64 // bytes sent; notRequested before the first request
}

const (
	notRequested = -1

	maxReaders = 256 // sequentialReaders of a mount
	maxLag     = 64  // batches by which a reader may trail another that shares its slots
)

// acquireSlot records that batch k of s is being read. If k was prefetched, it returns the slot,
// which the caller must RUnlock; otherwise the slot is nil. It waits for a running prefetch of k.
func (p *prefetcher) acquireSlot(s Batches, k uint64) (*sequentialReader, *slot) {
	if p.depth == 0 {
		return nil, nil
	}
	r, prefetched := p.recordRequest(s, k)
	if prefetched == nil {
		return r, nil
	}
	prefetched.RLock()
	if prefetched.batch != k || !prefetched.valid { // reused, or the prefetch failed
		prefetched.RUnlock()
		return r, nil
	}
	return r, prefetched
}

// recordRequest is like acquireSlot, but neither waits for a prefetch nor locks the slot.
func (p *prefetcher) recordRequest(s Batches, k uint64) (*sequentialReader, *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.find(s, k)
	wentBack := k > 0 && k == r.again // for example, to repeat an evaluation
	if k >= r.next || wentBack {
		r.next, r.again = k+1, 0
		if r.slots == nil {
			p.allocate(r)
		}
	}
	if len(r.slots) > 0 {
		if sl := r.slots[k%uint64(len(r.slots))]; sl.batch == k {
			sl.sent.CompareAndSwap(notRequested, 0)
			return r, sl
		}
	}
	if k+1 < r.next {
		r.again = k + 1
	}
	return r, nil
}

// find returns the reader that batch k continues, or a new one. The caller holds mu.
func (p *prefetcher) find(s Batches, k uint64) *sequentialReader {
	for i, r := range slices.Backward(p.readers) {
		if r.sequence == s && r.next <= k+maxLag && k <= r.next+uint64(p.depth) {
			if i < len(p.readers)-1 {
				p.readers = append(slices.Delete(p.readers, i, i+1), r)
			}
			return r
		}
	}
	if len(p.readers) == maxReaders {
		p.evict()
	}
	r := &sequentialReader{sequence: s, batchSize: s.Spec().Batch.Bytes(), next: k + 1}
	p.readers = append(p.readers, r)
	return r
}

// evict discards the least recently used reader and its slots. The caller holds mu.
func (p *prefetcher) evict() {
	r := p.readers[0]
	p.slotBytes.Add(-int64(len(r.slots)) * r.batchSize)
	r.slots = []*slot{} // not nil, so that a request that still uses r does not allocate again
	p.readers = slices.Delete(p.readers, 0, 1)
}

// allocate gives r its slots if two or more fit, and evicts other readers for them. The caller
// holds mu.
func (p *prefetcher) allocate(r *sequentialReader) {
	n := min(int64(p.depth)+1, p.maxBytes/r.batchSize)
	r.slots = []*slot{}
	if n < 2 {
		return
	}
	for p.slotBytes.Load()+n*r.batchSize > p.maxBytes {
		p.evict()
	}
	p.slotBytes.Add(n * r.batchSize)
	for range n {
		sl := &slot{batch: MaxBatches} // no batch has this number
		sl.sent.Store(notRequested)
		r.slots = append(r.slots, sl)
	}
}

// run prefetches the batches after the last one requested, until none is left or requests are
// waiting.
func (p *prefetcher) run(r *sequentialReader, split int) {
	for p.permits.TryPrefetch(split) {
		sl := p.claim(r)
		if sl != nil {
			p.compute(r, sl)
		}
		p.permits.EndPrefetch(split)
		if sl == nil {
			return
		}
	}
}

// compute fills a claimed slot and unlocks it. It drops errors and panics, because the request for
// the batch will compute it again and report them.
func (p *prefetcher) compute(r *sequentialReader, sl *slot) {
	defer sl.Unlock()
	defer func() {
		if v := recover(); v != nil {
			p.log.tryLog(slog.LevelError, "prefetching a batch panicked; its reader will compute it again", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	sl.valid = readInParts(r.sequence, sl.bytes, sl.batch) == nil
}

// readInParts reads batch k in parts as long as requests, because a read of a long row takes memory
// in proportion to the part that is read.
func readInParts(s Batches, dst []byte, k uint64) error {
	for off := 0; off < len(dst); off += mount.MaxRequest {
		if err := s.Read(dst[off:min(off+mount.MaxRequest, len(dst))], k, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// claim returns a write-locked slot for one of the next batches that is not prefetched yet, or nil
// if there is none. It spares batches that are partly sent, because the reader will come back for
// the rest.
func (p *prefetcher) claim(r *sequentialReader) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := uint64(len(r.slots))
	for k := r.next; k+1 < r.next+n && k < MaxBatches; k++ {
		sl := r.slots[k%n]
		if sl.batch == k || r.isPartlySent(sl, k) || !sl.TryLock() {
			continue
		}
		if sl.bytes == nil {
			sl.bytes = make([]byte, r.batchSize)
		}
		sl.batch, sl.valid = k, false
		sl.sent.Store(notRequested)
		return sl
	}
	return nil
}

// isPartlySent reports whether a reader is in the middle of the batch in sl. Some readers take only
// the main arrays, so a batch counts as sent once its main arrays are. A batch that is maxLag or
// more behind k does not count, because its reader has probably stopped.
func (r *sequentialReader) isPartlySent(sl *slot, k uint64) bool {
	sent := sl.sent.Load()
	return sent >= 0 && sent < r.sequence.Spec().Batch.MainBytes() && sl.batch+maxLag > k
}
