package cache

import (
	"context"
	"errors"

	"batchfs/cache/blob"
	"batchfs/cache/blocks"
)

// A Stretch is the elements [From, To) of an array.
type Stretch struct {
	Array    *Array
	From, To int64
}

// A Share is the blocks that an epoch of a reader needs.
type Share = blocks.Share

// NewShare is the share that holds stretches, or nil where no block of them is kept. name says who reads it.
func NewShare(name string, stretches []Stretch) *Share {
	return blocks.NewShare(name, partsOf(stretches))
}

// partsOf are the bytes of objects that hold stretches, each behind the indexes of its documents.
func partsOf(stretches []Stretch) (all []blocks.Part) {
	for _, s := range stretches {
		a := s.Array
		for of, r := range a.parts(s.From*a.width, s.To*a.width) {
			if of.index != nil {
				if o, ok := of.index.blob.(*blob.Object); ok {
					all = append(all, o.Part(0, o.Identity().Size))
				}
			}
			if o, ok := of.blob.(*blob.Object); ok {
				all = append(all, o.Part(r.From, r.To))
			}
		}
	}
	return all
}

// Fetch brings a share, which holds stretches, into the directory of blocks, each block once. It calls progress with the bytes of each. The
// error is ErrNoRoom, or that of ctx.
func Fetch(ctx context.Context, share *Share, stretches []Stretch, progress func(n int64)) error {
	share.Fill()
	f := &fetch{ctx: ctx, share: share, progress: progress}
	seen := map[blocks.Part]bool{}
	for _, p := range partsOf(stretches) {
		size := p.Object.BlockBytes()
		for i := range blocks.Holding(p.From, p.To, size) {
			b := blocks.Part{Object: p.Object, From: i * size, To: min((i+1)*size, p.Object.Size)}
			if seen[b] {
				continue
			}
			seen[b] = true
			for len(f.wanted) > 0 && !b.Object.Want(i, blocks.Demand{}) {
				if err := f.next(); err != nil {
					return err
				}
			}
			f.wanted = append(f.wanted, b)
		}
	}
	for len(f.wanted) > 0 {
		if err := f.next(); err != nil {
			return err
		}
	}
	return nil
}

type fetch struct {
	ctx      context.Context
	share    *Share
	progress func(n int64)
	wanted   []blocks.Part // blocks that are being fetched, in order
}

// next waits for the first of wanted.
func (f *fetch) next() error {
	b := f.wanted[0]
	f.wanted = f.wanted[1:]
	got, err := b.Object.Get(b.From / b.Object.BlockBytes())
	if err == nil {
		got.Release()
		f.progress(b.To - b.From)
		f.share.Read()
		err = context.Cause(f.ctx)
	}
	if err == nil && b.Object.Counts().Full.Load() > 0 {
		err = ErrNoRoom
	}
	return err
}

// ErrNoRoom says that the directory of blocks is full, or fails.
var ErrNoRoom = errors.New("no more room")
