package blob

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"batchfs/cache/blocks"
	"batchfs/cache/store"
)

// An Object is a Blob in a store. Its blocks are read as the files are that they are kept in.
type Object struct {
	name   string
	id     Identity
	sample Sample
	access Access
	drop   bool
	client *store.Client
	blocks *blocks.Object
	files  []atomic.Pointer[file] // of each block, its file, once it was verified

	changed atomic.Pointer[ChangedError] // nil, or how: the store has another object there
	looked  atomic.Int64                 // when Check last had a look whether it still has, as Uptime says
}

// newObject returns the object that had an identity when it was opened. It sends nothing.
func (r *Remote) newObject(name string, id Identity, sample Sample, access Access, drop bool) (*Object, error) {
	at, _ := store.Parse(name)
	at.ETag, at.Size = id.ETag, id.Size
	client, cache, err := r.open(at.Scheme)
	if err != nil {
		return nil, err
	}
	o := &Object{name: name, id: id, sample: sample, access: access, drop: drop, client: client}
	o.blocks = cache.Object(client.Endpoint(), at, client.ReadRange)
	o.files = make([]atomic.Pointer[file], o.blocks.Blocks())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects = append(r.objects, weak.Make(o))
	return o, nil
}

func (o *Object) closeRemoved() (some bool) {
	for i := range o.files {
		if f := o.files[i].Load(); f != nil && f.Check() != nil && o.files[i].CompareAndSwap(f, nil) {
			o.blocks.Forget(int64(i))
			some = true
		}
	}
	return some
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
	now, last := int64(Uptime()), o.looked.Load()
	if now-last > int64(LookEvery) && o.looked.CompareAndSwap(last, now) {
		go o.Look()
	}
	return changed
}

// LookEvery is how often the store is asked whether an object is still what it was: one that has been replaced, or of the objects of an array
// that are followed, one after the other.
const LookEvery = time.Second

// Look asks the store whether it still has the object.
func (o *Object) Look() {
	found, err := o.client.Stat(context.Background(), o.blocks.Object)
	switch {
	case err != nil:
	case found == o.blocks.Object:
		o.changed.Store(nil)
	default:
		o.changed.CompareAndSwap(nil, &ChangedError{o.name, "the store has another object there"})
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

// Part is bytes of the object.
func (o *Object) Part(from, to int64) blocks.Part {
	return blocks.Part{Object: o.blocks, From: from, To: to}
}

// rangeLists are *[]Range, the ranges of one Read.
var rangeLists = sync.Pool{New: func() any { return new([]Range) }}

// Read reads block after block, so that none is fetched twice, however few fit in memory.
func (o *Object) Read(ranges []Range, visit func(int, []byte) error) error {
	if changed := o.changed.Load(); changed != nil {
		return changed
	}
	list := rangeLists.Get().(*[]Range)
	defer rangeLists.Put(list)
	parts, size := (*list)[:0], o.blocks.BlockBytes() // parts: of ranges, each in one block
	for i, r := range ranges {
		for block := range blocks.Holding(r.From, r.To, size) {
			parts = append(parts, Range{max(r.From, block*size), min(r.To, (block+1)*size), i})
		}
	}
	*list = parts
	slices.SortFunc(parts, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	o.Want(parts, blocks.Demand{}) // all at once, as far as there is room
	var block int64
	var whole map[int][]byte // of ranges in several blocks, what was read
	read := func(i int, raw []byte) error {
		r := ranges[i]
		if int64(len(raw)) == r.To-r.From {
			return visit(r.Index, raw)
		}
		if whole == nil {
			whole = map[int][]byte{}
		}
		if whole[i] == nil {
			whole[i] = make([]byte, r.To-r.From)
		}
		copy(whole[i][max(block*size-r.From, 0):], raw)
		if r.To > (block+1)*size {
			return nil
		}
		return visit(r.Index, whole[i])
	}
	for len(parts) > 0 {
		n := 1
		for block = parts[0].From / size; n < len(parts) && parts[n].From/size == block; n++ {
		}
		if err := o.readBlock(block, parts[:n], read); err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

// readBlock reads ranges that lie in one block. If its file is not what it was, the block is read anew, also what was visited already.
func (o *Object) readBlock(block int64, ranges []Range, visit func(int, []byte) error) error {
	first := block * o.blocks.BlockBytes()
	list := rangeLists.Get().(*[]Range)
	defer rangeLists.Put(list)
	within := (*list)[:0]
	for _, r := range ranges {
		within = append(within, Range{r.From - first, r.To - first, r.Index})
	}
	*list = within
	for try := 1; ; try++ {
		if f := o.files[block].Load(); f != nil {
			var refused error
			err := f.Read(within, func(i int, raw []byte) error {
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
			for _, r := range within {
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

// A file of a block that is another one each time it is read is of no use.
const maxTries = 5

// keep makes the file of a block the one that it is read from.
func (o *Object) keep(block int64, b blocks.Block) error {
	// A block is small, and there are many: to map one, or to open it, for each row would cost more than the row.
	access := Pread
	if o.access == Map {
		access = Map
	}
	id := Identity{Dev: b.Stat.Dev, Ino: b.Stat.Ino, Size: b.Stat.Size, Sec: b.Stat.Sec, Nsec: b.Stat.Nsec}
	f, err := newFile(b.File, id, Sample{}, access, o.drop)
	if err == nil {
		f.staysOpen = true
		o.files[block].Store(f)
	}
	return err
}

// explain notes that the store has another object.
func (o *Object) explain(err error) error {
	if !errors.Is(err, store.ErrChanged) {
		return err
	}
	changed := &ChangedError{o.name, strings.TrimPrefix(err.Error(), o.name+": ")}
	o.changed.Store(changed)
	return changed
}
