package cache

import (
	"context"
	"sync"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/blocks"
)

// A Stretch is the elements [From, To) of an array.
type Stretch struct {
	Array    *Array
	From, To int64
}

// parts are the bytes of objects that hold stretches, and all bytes of the indexes of their documents.
func parts(stretches []Stretch) (all []blocks.Part) {
	for _, s := range stretches {
		for of, r := range s.Array.parts(s.From*s.Array.width, s.To*s.Array.width) {
			if o, ok := of.blob.(*blob.Object); ok {
				all = append(all, o.Part(r.From, r.To))
			}
			if of.index == nil {
				continue
			}
			if o, ok := of.index.blob.(*blob.Object); ok {
				all = append(all, o.Part(0, o.Identity().Size))
			}
		}
	}
	return all
}

// A Share is the blocks that an epoch of a reader needs.
type Share = blocks.Share

// NewShare is the share that holds stretches, or nil where no block of them is kept. name says who reads it.
func NewShare(name string, stretches []Stretch) *Share {
	return blocks.NewShare(name, parts(stretches))
}

// Fetch fetches every block of share, which holds stretches, into the block directory. It fetches
// each block once, in the order in which windows visits them until visit returns false, and then
// the rest. It calls progress with the bytes of each block, one call at a time. The error is an
// error of [blocks.Object.Keep], or the cause of ctx.
func Fetch(ctx context.Context, share *Share, stretches []Stretch, windows func(visit func(*Array, array.Window) bool), progress func(n int64)) error {
	share.Fill()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	var one sync.Mutex // serializes the calls of progress
	places := make(chan struct{}, atOnce)
	seen := map[blocks.Part]bool{} // single blocks whose fetch has begun
	fetch := func(p blocks.Part) {
		size := p.Object.BlockBytes()
		for i := range blocks.Holding(p.From, p.To, size) {
			b := blocks.Part{Object: p.Object, From: i * size, To: min((i+1)*size, p.Object.Size)}
			if seen[b] || ctx.Err() != nil {
				continue
			}
			seen[b] = true
			places <- struct{}{}
			all.Go(func() {
				defer func() { <-places }()
				if err := b.Object.Keep(i); err != nil {
					stop(err)
					return
				}
				share.Read()
				one.Lock()
				defer one.Unlock()
				progress(b.To - b.From)
			})
		}
	}
	windows(func(a *Array, w array.Window) bool {
		for s, r := range a.parts(a.span(w)) {
			if o, ok := s.blob.(*blob.Object); ok {
				fetch(o.Part(r.From, r.To))
			}
		}
		return ctx.Err() == nil && int64(len(seen)) < share.Blocks
	})
	for _, p := range parts(stretches) {
		fetch(p)
	}
	all.Wait()
	return context.Cause(ctx)
}
