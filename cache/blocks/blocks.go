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

	"batchfs/cache/counts"
	"batchfs/cache/store"
)

// Options say where blocks are kept.
type Options struct {
	Dir        string // directory that all processes of a user share on this host; empty: none
	Shared     bool   // whether a group, whose members are trusted, may use Dir
	Limit      int64  // maximum size of the blocks in Dir, in bytes
	BlockBytes int64
	Memory     int64 // maximum size of the blocks in memory, in bytes; two blocks at least

	// Ahead is the timeout for fetching a block that no reader waits for yet, so that the fetch
	// does not hold memory for long during an outage; 0: none.
	Ahead time.Duration

	Counts *counts.Blocks // counters of reads; nil: each cache has its own
	Writes *counts.Writes // counters of fetched blocks; nil: each cache has its own
}

// Slots is how many blocks are in memory at most.
func (o Options) Slots() int { return int(max(o.Memory/o.BlockBytes, 2)) }

// Fetch fills dst with the bytes of an object from off on, or returns an error.
type Fetch func(ctx context.Context, o store.Object, off int64, dst []byte) error

// A Cache keeps blocks of objects. It is safe for concurrent use.
type Cache struct {
	o    Options
	disk *disk

	counts *counts.Blocks
	writes *counts.Writes

	mu      sync.Mutex
	changed sync.Cond      // a slot may be free, or a write has ended; its lock is mu
	entries map[key]*entry // blocks wanted, loading or in memory; guarded by mu, like all below
	recent  list.List      // entries (*entry) in memory, the least recently wanted first
	free    [][]byte       // unused slots
	taken   int            // slots in use
	queue   []*entry       // blocks to prefetch that have no slot yet
	pending []*entry       // blocks to be written, oldest first
	writing bool           // a goroutine is writing them
	began   time.Time      // when the current write began
}

// These errors are the reasons why a fetched block was not written. Any other error means that the
// directory failed.
var (
	errPresent = errors.New("another process has written the block already")
	ErrFull    = errors.New("store.cache_dir has no more room")
	ErrSlow    = errors.New("a block could not be written in time: its disk is slow, or another process holds the lock of store.cache_dir")
)

// note counts the outcome of writing a block, and returns it, or nil if the directory has the
// block.
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
	done    chan struct{} // closed when loading ends; the fields down to loaded are set before that
	err     error         // error of the fetch
	bytes   []byte        // content, in a slot; nil if a file has it, or loading failed
	ahead   bool          // loading began before a reader waited for the block
	loaded  time.Time
	queued  bool          // waits to be prefetched; guarded by Cache.mu, like all fields below
	refs    int           // readers, plus one while it is being written
	read    bool          // a reader has asked for it
	needs   []need        // streams that need it, and when
	pending bool          // waits to be written, or is being written
	outcome error         // reason why the directory lacks it; nil while pending or if written
	at      *list.Element // position in Cache.recent; nil unless in memory
}

// New returns a cache. It does not touch the directory.
func New(o Options, log *slog.Logger) *Cache {
	c := &Cache{o: o, entries: map[key]*entry{}, counts: cmp.Or(o.Counts, new(counts.Blocks)), writes: cmp.Or(o.Writes, new(counts.Writes))}
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
func (o *Object) Counts() *counts.Blocks { return o.cache.counts }

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

// Keep fetches a block unless the directory has it, and waits until it is written there. It returns
// the store's error, ErrFull, ErrSlow, or the failure of the directory. Without a directory, Keep
// only fetches the block.
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
		// Try again: a caller waits for the write now, and the block may belong to a share that
		// makes room.
		c.pend(e)
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

// load takes a block from the directory if it is there, and fetches it from the store otherwise.
func (c *Cache) load(e *entry) {
	k, slot := e.key, e.bytes
	e.bytes = nil
	found := c.find(k)
	if !found && slot == nil {
		var waited bool
		if slot, waited = c.waitForSlot(); waited {
			found = c.find(k) // another process may have written it meanwhile
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

// find reports whether the directory has an intact copy of a block, and records its file if so.
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

// loadedFrom ends the loading of e. spare is a slot to free, or nil. bytes is the fetched content,
// or nil if a file has the block or loading failed.
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
