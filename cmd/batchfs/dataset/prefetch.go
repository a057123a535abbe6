package dataset

import (
	"slices"
	"sync"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/blocks"
)

// A blockPrefetcher fetches from the store what the next batches need, while batches are read in
// order.
type blockPrefetcher struct {
	d     *Dataset
	bytes int64  // of a batch
	most  uint64 // batches to look ahead
	by    blocks.Stream
	mu    sync.Mutex
	last  uint64 // batch that was read; guarded by mu, as next
	next  uint64 // the first batch whose blocks are not all wanted yet
}

const (
	// Several threads read in order, each up to so many batches from the others.
	inOrder = 64
	// Rows to look ahead, or one batch if that has more.
	maxPrefetchedRows = 4096
)

func newBlockPrefetcher(d *Dataset) *blockPrefetcher {
	return &blockPrefetcher{
		d:     d,
		bytes: d.Sequence.Batch().Bytes(),
		most:  uint64(max(maxPrefetchedRows/d.Sequence.BatchSize, 1)),
		last:  d.Split.Start,
	}
}

// reads notes that a reader is at batch k, and does not wait.
func (l *blockPrefetcher) reads(k uint64) {
	l.by.Pass(k)
	if l.mu.TryLock() { // else another reader's look is as good
		go func() {
			defer l.mu.Unlock()
			l.from(k)
		}()
	}
}

func (d *Dataset) isRemote() bool { return slices.ContainsFunc(d.arrays, (*cache.Array).IsRemote) }

// from wants the blocks of batches from k on, nearest first, until there is no more room.
func (l *blockPrefetcher) from(k uint64) {
	far := k+inOrder < l.last || k > l.last+inOrder
	l.last = k
	if far {
		return
	}
	if l.next < k || l.next > k+l.most+inOrder {
		l.next = k
	}
	for ; l.next < k+l.most; l.next++ {
		demand := blocks.Demand{By: &l.by, Batch: l.next}
		room := l.d.Sequence.Windows(l.next, func(source, column int, w array.Window) bool { return l.d.sources[source][column].Prefetch(w, demand) })
		if !room {
			return
		}
	}
}
