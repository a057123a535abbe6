package dataset

import (
	"sync"

	"batchfs/cache/array"
	"batchfs/cache/blocks"
)

// A blockPrefetcher fetches the cache blocks of the next batches from a store while batches are
// read in order. It is safe for concurrent use.
type blockPrefetcher struct {
	d          *Dataset
	batchBytes int64
	maxBatches uint64 // batches to prefetch after the one being read
	stream     blocks.Stream
	mu         sync.Mutex // guards the fields below
	lastRead   uint64
	nextBatch  uint64 // first batch whose blocks have not all been requested yet
}

// maxPrefetchedRows limits how many rows are prefetched. One batch is always prefetched, even if it
// has more rows.
const maxPrefetchedRows = 4096

func newBlockPrefetcher(d *Dataset) *blockPrefetcher {
	return &blockPrefetcher{
		d:          d,
		batchBytes: d.Sequence.Batch().Bytes(),
		maxBatches: uint64(max(maxPrefetchedRows/d.Sequence.BatchSize, 1)),
		lastRead:   d.Split.Start,
	}
}

// batchRead records that a reader is at batch k, and starts prefetching in the background.
func (p *blockPrefetcher) batchRead(k uint64) {
	p.stream.Advance(k)
	if p.mu.TryLock() { // a lock that is held means that another reader is prefetching
		go func() {
			defer p.mu.Unlock()
			defer func() { recover() }() // the read of the batch reports a panic
			p.prefetchFrom(k)
		}()
	}
}

// prefetchFrom requests the blocks of up to maxBatches batches, beginning with k, until the cache
// accepts no more. If k is far from the last batch read, it only records k.
func (p *blockPrefetcher) prefetchFrom(k uint64) {
	far := k+array.MaxLag < p.lastRead || k > p.lastRead+array.MaxLag
	p.lastRead = k
	if far {
		return
	}
	if p.nextBatch < k || p.nextBatch > k+p.maxBatches+array.MaxLag {
		p.nextBatch = k
	}
	for ; p.nextBatch < k+p.maxBatches; p.nextBatch++ {
		demand := blocks.Demand{By: &p.stream, Batch: p.nextBatch}
		for w, err := range p.d.Sequence.Windows(p.nextBatch) {
			if err != nil || !p.d.sources[w.Source][w.Column].Prefetch(w.Window, demand) {
				return
			}
		}
	}
}
