package cache

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/blocks"
)

// A Stretch is the elements [From, To) of an array.
type Stretch struct {
	Array    *Array
	From, To int64
}

// parts are the bytes of objects that hold a stretch, and all bytes of the indexes of their documents.
func (s Stretch) parts() (elements, indexes []blocks.Part) {
	a := s.Array
	for of, r := range a.parts(s.From*a.width, s.To*a.width) {
		if o, ok := of.blob.(*blob.Object); ok {
			elements = append(elements, o.Part(r.From, r.To))
		}
		if of.index == nil {
			continue
		}
		if o, ok := of.index.blob.(*blob.Object); ok {
			indexes = append(indexes, o.Part(0, o.Identity().Size))
		}
	}
	return elements, indexes
}

// A Share is the blocks that an epoch of a reader needs.
type Share = blocks.Share

// NewShare is the share that holds stretches, or nil where no block of them is kept. name says who reads it.
func NewShare(name string, stretches []Stretch) *Share {
	var parts []blocks.Part
	for _, s := range stretches {
		elements, indexes := s.parts()
		parts = append(parts, slices.Concat(elements, indexes)...)
	}
	return blocks.NewShare(name, parts)
}

// Fetch brings a share, which holds stretches, into the directory of blocks: each block once, in the order in which windows visits them,
// until visit returns false, and then the rest. It calls progress with the bytes of each block. The error is ErrNoRoom, or that of ctx.
func Fetch(ctx context.Context, share *Share, stretches []Stretch, windows func(visit func(*Array, array.Window) bool), progress func(n int64)) error {
	share.Fill()
	f := &fetch{ctx: ctx, share: share, progress: progress, seen: map[blocks.Part]bool{}}
	for _, s := range stretches {
		_, indexes := s.parts()
		f.add(indexes...)
	}
	windows(func(a *Array, w array.Window) bool {
		for s, r := range a.parts(a.span(w)) {
			if o, ok := s.blob.(*blob.Object); ok {
				f.add(o.Part(r.From, r.To))
			}
		}
		return f.err == nil && int64(len(f.seen)) < share.Blocks
	})
	for _, s := range stretches {
		elements, _ := s.parts()
		f.add(elements...)
	}
	for len(f.wanted) > 0 && f.err == nil {
		f.next()
	}
	return f.err
}

type fetch struct {
	ctx      context.Context
	share    *Share
	progress func(n int64)
	seen     map[blocks.Part]bool // of single blocks, as wanted
	wanted   []blocks.Part        // that are being fetched, in order
	err      error
}

// add fetches the blocks of parts that it has not seen.
func (f *fetch) add(parts ...blocks.Part) {
	for _, p := range parts {
		size := p.Object.BlockBytes()
		for i := range blocks.Holding(p.From, p.To, size) {
			b := blocks.Part{Object: p.Object, From: i * size, To: min((i+1)*size, p.Object.Size)}
			if f.seen[b] || f.err != nil {
				continue
			}
			f.seen[b] = true
			for len(f.wanted) > 0 && !b.Object.Want(i, blocks.Demand{}) {
				f.next()
			}
			f.wanted = append(f.wanted, b)
		}
	}
}

// next waits for the first of wanted.
func (f *fetch) next() {
	b := f.wanted[0]
	f.wanted = f.wanted[1:]
	got, err := b.Object.Get(b.From / b.Object.BlockBytes())
	if err == nil {
		got.Release()
		f.progress(b.To - b.From)
		f.share.Read()
		err = context.Cause(f.ctx)
	}
	if b.Object.Counts().Full.Load() > 0 {
		err = cmp.Or(err, ErrNoRoom)
	}
	f.err = cmp.Or(f.err, err)
}

// ErrNoRoom says that the directory of blocks is full, or fails.
var ErrNoRoom = errors.New("no more room")
