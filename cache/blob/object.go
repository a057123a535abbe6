package blob

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"batchfs/cache/blocks"
	"batchfs/cache/store"
	"batchfs/internal/clock"
)

// An Object is a Blob in a store. Its blocks are read as the files are that they are kept in.
type Object struct {
	name   string
	id     Identity
	sample Sample
	drop   bool
	client *store.Client
	blocks *blocks.Object
	files  []atomic.Pointer[file] // of each block, its file, once it was verified

	changed atomic.Pointer[ChangedError] // nil, or how: the store has another object there
	looked  atomic.Int64                 // when Check last had a look whether it still has, in clock.Now time
}

// newObject returns the object that had an identity when it was opened. It sends nothing.
func (r *Remote) newObject(name string, id Identity, sample Sample, drop bool) (*Object, error) {
	at, _ := store.Parse(name)
	at.ETag, at.Size = id.ETag, id.Size
	client, cache, err := r.open(at.Scheme)
	if err != nil {
		return nil, err
	}
	o := &Object{name: name, id: id, sample: sample, drop: drop, client: client}
	o.blocks = cache.Object(client.Endpoint, at, client.ReadRange)
	o.files = make([]atomic.Pointer[file], o.blocks.Blocks())
	return o, nil
}

func (o *Object) Path() string { return o.name }

func (o *Object) Identity() Identity { return o.id }

func (o *Object) Sample() Sample { return o.sample }

// Check sends nothing while the store is not known to have another object: every read from the store compares the ETag.
func (o *Object) Check() error {
	changed := o.changed.Load()
	if changed == nil {
		return nil
	}
	now, last := clock.Now(), o.looked.Load()
	if now-last > int64(time.Second) && o.looked.CompareAndSwap(last, now) {
		go o.Look()
	}
	return changed
}

// Look asks the store whether it still has the object, and notes the answer for Check.
func (o *Object) Look() {
	found, err := o.client.Stat(context.Background(), o.blocks.Object)
	switch {
	case err != nil:
	case found == o.blocks.Object:
		o.changed.Store(nil)
	default:
		o.changed.CompareAndSwap(nil, &ChangedError{Path: o.name, How: "the store has another object there"})
	}
}

func (o *Object) Release() {
	for i := range o.files {
		if f := o.files[i].Load(); f != nil {
			f.Release()
		}
	}
}

// Want says that ranges will be read soon, after the ranges of earlier calls, and does not wait. It returns false if some of them must be said
// again later, because there is no room to fetch them yet.
func (o *Object) Want(ranges []Range, t blocks.Demand) (room bool) {
	size := o.blocks.BlockBytes()
	for _, r := range ranges {
		for i := range blocks.Holding(r.From, r.To, size) {
			if o.files[i].Load() == nil && !o.blocks.Want(i, t) {
				return false
			}
		}
	}
	return true
}

func (o *Object) Part(from, to int64) blocks.Part {
	return blocks.Part{Object: o.blocks, From: from, To: to}
}

// Read reads block after block.
func (o *Object) Read(ranges []Range, visit func(int, []byte) error) (err error) {
	if changed := o.changed.Load(); changed != nil {
		return changed
	}
	SortRanges(ranges)              // each block is fetched once then
	o.Want(ranges, blocks.Demand{}) // all at once, as far as there is room
	for size := o.blocks.BlockBytes(); len(ranges) > 0 && err == nil; {
		block, n := ranges[0].From/size, 0
		for n < len(ranges) && ranges[n].From >= block*size && ranges[n].To <= (block+1)*size {
			n++
		}
		if n > 0 {
			err = o.readBlock(block, ranges[:n], visit)
		} else {
			n, err = 1, o.readAcross(ranges[0], visit)
		}
		ranges = ranges[n:]
	}
	return err
}

// readAcross reads a range that lies in several blocks.
func (o *Object) readAcross(r Range, visit func(int, []byte) error) error {
	whole, size := make([]byte, r.To-r.From), o.blocks.BlockBytes()
	for block := range blocks.Holding(r.From, r.To, size) {
		part := Range{From: max(r.From, block*size), To: min(r.To, (block+1)*size)}
		err := o.readBlock(block, []Range{part}, func(_ int, raw []byte) error {
			copy(whole[part.From-r.From:], raw)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return visit(r.Index, whole)
}

// readBlock reads ranges that lie in one block. If its file is not what it was, the block is read anew, also what was visited already.
func (o *Object) readBlock(block int64, ranges []Range, visit func(int, []byte) error) error {
	first := block * o.blocks.BlockBytes()
	for i := range ranges {
		ranges[i].From -= first
		ranges[i].To -= first
	}
	for try := 1; ; try++ {
		if f := o.files[block].Load(); f != nil {
			var refused error
			err := f.Read(ranges, func(i int, raw []byte) error {
				refused = visit(i, raw)
				return refused
			})
			if err == nil || errors.Is(err, refused) {
				o.blocks.Counts().Hits.Add(1)
				return err
			}
			o.files[block].CompareAndSwap(f, nil)
			o.blocks.Forget(block)
			if try == maxTries {
				return err
			}
		}
		b, err := o.blocks.Get(block)
		if err != nil {
			return o.explain(err)
		}
		if b.File == "" {
			defer b.Release()
			for _, r := range ranges {
				if err := visit(r.Index, b.Bytes[r.From:r.To]); err != nil {
					return err
				}
			}
			return nil
		}
		if err := o.keep(block, b); err != nil {
			return err
		}
	}
}

// maxTries bounds how often a block is fetched for one read, if its file is another one each time.
const maxTries = 5

func (o *Object) keep(block int64, b blocks.Block) error {
	id := Identity{Dev: b.Stat.Dev, Ino: b.Stat.Ino, Size: b.Stat.Size, Sec: b.Stat.Sec, Nsec: b.Stat.Nsec}
	f, err := newFile(b.File, id, Sample{}, stayOpen, o.drop)
	if err == nil {
		o.files[block].Store(f)
	}
	return err
}

// explain notes that the store has another object.
func (o *Object) explain(err error) error {
	if !errors.Is(err, store.ErrChanged) {
		return err
	}
	changed := &ChangedError{Path: o.name, How: strings.TrimPrefix(err.Error(), o.name+": ")}
	o.changed.Store(changed)
	return changed
}
