// Package blocks keeps blocks of objects near those who read them: a few in memory, and many as files of a directory that all
// processes of a user share.
//
// A block that is wanted is read from the directory if it is there, and fetched from the store otherwise: once, however many
// readers want it. A fetched block is served from memory and written to the directory meanwhile. A full directory
// evicts no block that its readers need: they read every block once an epoch, so replacing one would only mean to fetch more.
// Blocks that no reader needs make room: see Share.
package blocks

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"batchfs/cache/store"
)

// Options say where blocks are kept.
type Options struct {
	Dir        string // of all processes of a user of this host; empty: none
	Shared     bool   // a group may use it, whose members are trusted
	Limit      int64  // bytes of the blocks in it
	BlockBytes int64
	Memory     int64 // bytes of the blocks in memory, of at least two

	// Ahead bounds the fetch of a block that no reader waits for yet: while the store is away, it must not hold memory for long.
	Ahead time.Duration

	Counts *Counts // of all reads; nil: each cache has its own
	Writes *Writes // of all blocks that were fetched; nil: each cache has its own
}

// Slots is how many blocks are in memory at most.
func (o Options) Slots() int { return int(max(o.Memory/o.BlockBytes, 2)) }

// Fetch fills dst with the bytes of an object from off on, or returns an error.
type Fetch func(ctx context.Context, o store.Object, off int64, dst []byte) error

// A Cache keeps blocks of objects. It is safe for concurrent use.
type Cache struct {
	o    Options
	disk *disk

	counts *Counts
	writes *Writes

	mu      sync.Mutex
	changed sync.Cond      // a slot may be free, or what waited is written; its lock is mu
	entries map[key]*entry // that are wanted, loading or in memory; guarded by mu, as all below
	recent  list.List      // of the *entry in memory, the one that was wanted last is the last
	free    [][]byte       // slots
	taken   int            // slots in use
	queue   []*entry       // that are wanted ahead, and have no slot yet
	pending []*entry       // to be written, oldest first
	writing bool           // a goroutine writes them
	began   time.Time      // when it began with the one that it is at
}

// Counts are what readers of blocks met. Several processes may add to them.
type Counts struct {
	Hits   atomic.Int64 // reads of a block that was there; blob counts reads of files
	Waits  atomic.Int64 // reads of a block that was fetched meanwhile
	Waited atomic.Int64 // nanoseconds of those
	Full   atomic.Int64 // fetched blocks for which the directory had no room
}

// Writes count the fetched blocks that this cache did not write to the directory for a reason other than Counts.Full. Several
// processes may add to them.
type Writes struct {
	Present atomic.Int64 // another process had written the block first
	Failed  atomic.Int64 // the directory could not be written
	Slow    atomic.Int64 // other blocks needed the memory before the disk had taken this one
}

// Reasons why a fetched block was not written. Any other error means that the directory fails.
var (
	errPresent = errors.New("another process has written the block already")
	ErrFull    = errors.New("store.cache_dir has no more room")
	ErrSlow    = errors.New("a block could not be written in time: its disk is slow, or another process holds the lock of store.cache_dir")
)

// note counts the outcome of writing a block, and returns nil if the directory has the block.
func (c *Cache) note(outcome error) error {
	switch {
	case outcome == nil:
	case errors.Is(outcome, errPresent):
		c.writes.Present.Add(1)
		return nil
	case errors.Is(outcome, ErrFull):
		c.counts.Full.Add(1)
	case errors.Is(outcome, ErrSlow):
		c.writes.Slow.Add(1)
	default:
		c.writes.Failed.Add(1)
	}
	return outcome
}

// A key names a block.
type key struct {
	object *Object
	index  int64
}

// An entry is a block that is wanted ahead, loading or in memory.
type entry struct {
	key     key
	done    chan struct{} // closed when it is loaded; what follows it is written before
	err     error
	bytes   []byte // of a slot; nil: a file has it, or it failed
	ahead   bool   // no reader waited for it when it began to load
	loaded  time.Time
	queued  bool          // it waits to be loaded ahead; guarded by Cache.mu, as all below
	refs    int           // readers, and the writer
	read    bool          // a reader has asked for it
	needs   []need        // of streams
	pending bool          // to be written
	outcome error         // why the directory does not have it; nil while it is pending
	at      *list.Element // in recent
}

// New returns a cache. It touches nothing.
func New(o Options, log *slog.Logger) *Cache {
	c := &Cache{o: o, entries: map[key]*entry{}, counts: cmp.Or(o.Counts, new(Counts)), writes: cmp.Or(o.Writes, new(Writes))}
	c.changed.L = &c.mu
	if o.Dir != "" {
		c.disk = &disk{dir: o.Dir, shared: o.Shared, limit: o.Limit, log: log, shares: map[string]*Share{}}
		c.disk.none = Share{disk: c.disk, Blocks: 1000}
	}
	return c
}

// An Object is an object whose blocks are kept.
type Object struct {
	store.Object
	cache    *Cache
	identity identity
	fetch    Fetch
	onDisk   []atomic.Pointer[Stat] // of each block, its file, once it was written or verified by this process
}

// Object returns an object of the store at an endpoint, for its blocks to be read.
func (c *Cache) Object(endpoint string, o store.Object, fetch Fetch) *Object {
	of := &Object{Object: o, cache: c, fetch: fetch, identity: identity{endpoint, o.Bucket, o.Key, o.ETag, o.Size, c.o.BlockBytes}}
	if c.disk != nil {
		of.onDisk = make([]atomic.Pointer[Stat], of.Blocks())
	}
	return of
}

// Blocks is the number of blocks.
func (o *Object) Blocks() int64 { return (o.Size + o.cache.o.BlockBytes - 1) / o.cache.o.BlockBytes }

// BlockBytes is the size of each block but the last.
func (o *Object) BlockBytes() int64 { return o.cache.o.BlockBytes }

// Counts are the counts of the object's cache.
func (o *Object) Counts() *Counts { return o.cache.counts }

// Holding are the blocks of so many bytes that hold the bytes [from, to) of an object.
func Holding(from, to, size int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for i := from / size; i*size < to && yield(i); i++ {
		}
	}
}

// bounds are the bytes of a block.
func (k key) bounds() (from, to int64) {
	from = k.index * k.object.cache.o.BlockBytes
	return from, min(from+k.object.cache.o.BlockBytes, k.object.Size)
}

// IsOnDisk reports whether this process knows that the directory has a block.
func (o *Object) IsOnDisk(index int64) bool {
	return o.onDisk != nil && o.onDisk[index].Load() != nil
}

// Forget says that the file of a block is not what it was, or is gone.
func (o *Object) Forget(index int64) { o.onDisk[index].Store(nil) }

// file returns a block that the directory is known to have.
func (o *Object) file(index int64) (b Block, ok bool) {
	if !o.IsOnDisk(index) {
		return b, false
	}
	b.Stat = o.onDisk[index].Load() // or nil, where it was forgotten just now
	b.File = filepath.Join(o.cache.disk.dir, key{o, index}.path())
	return b, b.Stat != nil
}

// A Block is one of an object, until it is released: bytes in memory, or a file that begins with them as long as its Stat is the same.
type Block struct {
	Bytes []byte
	File  string
	Stat  *Stat
	entry *entry
}

// Release says that the block is needed no more.
func (b Block) Release() {
	if b.entry != nil {
		b.entry.key.object.cache.release(b.entry)
	}
}

// Get returns a block. The caller releases it, waits for no other one meanwhile, and counts a hit if it reads a file.
func (o *Object) Get(index int64) (Block, error) {
	c, k := o.cache, key{o, index}
	c.mu.Lock()
	e := c.entries[k]
	if e == nil || e.queued {
		if b, ok := o.file(index); ok {
			c.mu.Unlock()
			return b, nil
		}
		if e == nil {
			e = c.add(k, nil)
		} else {
			c.unqueue(e)
		}
		go c.load(e)
	} else if e.at != nil {
		c.recent.MoveToBack(e.at)
	}
	e.refs++
	e.read = true
	c.mu.Unlock()
	began, waited := time.Now(), false
	select {
	case <-e.done:
	default:
		waited = true
		<-e.done
	}
	switch {
	case e.bytes == nil:
		c.release(e)
		if e.err != nil && !e.ahead {
			return Block{}, e.err
		}
		return o.Get(index) // of a file, or with all of the time that it may take
	case waited:
		c.counts.Waits.Add(1)
		c.counts.Waited.Add(int64(time.Since(began)))
	default:
		c.counts.Hits.Add(1)
	}
	return Block{Bytes: e.bytes, entry: e}, nil
}

// Keep fetches a block unless the directory has it, and waits until the directory does. The error is the store's, ErrFull, ErrSlow or
// the disk's.
func (o *Object) Keep(index int64) error {
	began, c := time.Now(), o.cache
	b, err := o.Get(index)
	if err != nil || b.entry == nil || c.disk == nil {
		return err
	}
	defer b.Release()
	e := b.entry
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.outcome != nil && (errors.Is(e.outcome, ErrSlow) || e.loaded.Before(began)) {
		c.pend(e) // now somebody waits for it, and it may belong to a share that makes room
	}
	for e.pending && !c.stuck(patience) {
		c.wait()
	}
	if e.pending {
		return fmt.Errorf("%s: %w", c.o.Dir, ErrSlow)
	}
	return e.outcome
}

// add makes an entry. The caller holds mu, and loads it.
func (c *Cache) add(k key, needs []need) *entry {
	e := &entry{key: k, done: make(chan struct{}), needs: needs}
	c.entries[k] = e
	return e
}

// load loads a block.
func (c *Cache) load(e *entry) {
	k, slot := e.key, e.bytes
	e.bytes = nil
	found := c.find(k)
	if !found && slot == nil {
		var waited bool
		if slot, waited = c.waitForSlot(); waited {
			found = c.find(k) // another process may have written it
		}
	}
	if found {
		c.loadedFrom(e, slot, nil)
		return
	}
	from, to := k.bounds()
	ctx := context.Background()
	if e.ahead && c.o.Ahead > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.Ahead)
		defer cancel()
	}
	if e.err = k.object.fetch(ctx, k.object.Object, from, slot[:to-from]); e.err != nil {
		c.loadedFrom(e, slot, nil)
		return
	}
	c.loadedFrom(e, nil, slot[:to-from])
}

// find reports whether the directory has a block.
func (c *Cache) find(k key) bool {
	if c.disk == nil {
		return false
	}
	found := c.disk.verify(k)
	if found != nil {
		k.object.onDisk[k.index].Store(found)
	}
	return found != nil
}

// loadedFrom ends loading. It takes a slot that is not needed, or the block's bytes.
func (c *Cache) loadedFrom(e *entry, spare, bytes []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if spare != nil {
		c.taken--
		c.free = append(c.free, spare)
	}
	if bytes == nil {
		delete(c.entries, e.key)
	} else {
		e.bytes, e.loaded = bytes, time.Now()
		e.at = c.recent.PushBack(e)
		switch {
		case c.disk == nil:
		case c.stuck(slowest):
			e.outcome = c.note(ErrSlow)
		default:
			c.pend(e)
		}
	}
	close(e.done)
	c.changed.Broadcast()
	c.pump()
}
