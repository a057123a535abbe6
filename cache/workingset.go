package cache

import (
	"context"
	"sync"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/blocks"
	"batchfs/cache/localfile"
)

// An ArrayRange is the elements [From, To) of an array.
type ArrayRange struct {
	Array    *Array
	From, To int64
}

// A WorkingSet is the set of cache blocks that a reader needs in an epoch. It is safe for
// concurrent use.
type WorkingSet struct {
	*blocks.WorkingSet
	ranges []blocks.ObjectRange
}

// NewWorkingSet returns the working set of ranges and of the indexes of their documents, or nil if
// none of them is cached in a directory. name identifies the reader in messages.
func NewWorkingSet(name string, ranges []ArrayRange) *WorkingSet {
	var all []blocks.ObjectRange
	for _, r := range ranges {
		for s, part := range r.Array.objectRanges(localfile.Range{From: r.From * r.Array.elementBytes, To: r.To * r.Array.elementBytes}) {
			all = append(all, part)
			if s.index != nil { // the index lies next to the object
				all = append(all, s.index.blob.(*blob.StoreBlob).Range(0, s.index.blob.Stamp().Size))
			}
		}
	}
	set := blocks.NewWorkingSet(name, all)
	if set == nil {
		return nil
	}
	return &WorkingSet{set, all}
}

// Fetch fetches each cache block of the working set into the cache directory once: first those of
// the windows that the function windows visits, in that order, and then the rest. windows must
// return once visit returns false. Fetch calls progress with the size of each block in bytes, one
// call at a time. The error is that of [blocks.CachedObject.Persist], or the cause of ctx.
func (set *WorkingSet) Fetch(ctx context.Context, windows func(visit func(*Array, array.Window) bool), progress func(n int64)) error {
	set.BeginFill()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	var mu sync.Mutex // serializes the calls of progress
	permits := make(chan struct{}, maxParallelOpens)
	begun := map[blocks.ObjectRange]bool{}
	fetch := func(r blocks.ObjectRange) {
		for i := range r.Blocks() {
			block := r.Object.Block(i)
			if begun[block] || ctx.Err() != nil {
				continue
			}
			begun[block] = true
			permits <- struct{}{}
			all.Go(func() {
				defer func() { <-permits }()
				if err := r.Object.Persist(i); err != nil {
					stop(err)
					return
				}
				set.Touch()
				mu.Lock()
				defer mu.Unlock()
				progress(block.To - block.From)
			})
		}
	}
	windows(func(a *Array, w array.Window) bool {
		for _, r := range a.objectRanges(a.byteRange(w)) {
			fetch(r)
		}
		return ctx.Err() == nil && int64(len(begun)) < set.Blocks
	})
	for _, r := range set.ranges {
		fetch(r)
	}
	all.Wait()
	return context.Cause(ctx)
}
