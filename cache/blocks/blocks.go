// Package blocks keeps blocks of objects near those who read them: a few in memory, and many as files of a directory that all
// processes of a user share.
//
// A block that is wanted is read from the directory if it is there, and fetched from the store otherwise: once, however many
// readers want it. A fetched block is served from memory and written to the directory meanwhile. A full directory
// evicts no block that its readers need: they read every block once an epoch, so replacing one would only mean to fetch more.
// Blocks that no reader needs make room: see Share.
package blocks

import (
	"container/list"
	"context"
	"iter"
	"log/slog"
	"path/filepath"
	"slices"
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
}

// Slots is how many blocks are in memory at most.
func (o Options) Slots() int { return int(max(o.Memory/o.BlockBytes, 2)) }

// aheadSlots is how many blocks in memory may wait for their readers. The others are for readers that wait.
func (o Options) aheadSlots() int { return o.Slots() - max(o.Slots()/4, 1) }

// AtOnce is how many blocks are fetched ahead at a time at most.
func (o Options) AtOnce() int { return min(o.aheadSlots(), maxLoading) }

// Fetch fills dst with the bytes of an object from off on, or returns an error.
type Fetch func(ctx context.Context, o store.Object, off int64, dst []byte) error

// A Cache keeps blocks of objects. It is safe for concurrent use.
type Cache struct {
	o    Options
	disk *disk

	Counts Counts

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

// Counts are what readers of blocks met.
type Counts struct {
	Hits   atomic.Int64 // reads of a block that was there; blob counts reads of files
	Waits  atomic.Int64 // reads of a block that was fetched meanwhile
	Waited atomic.Int64 // nanoseconds of those
	Full   atomic.Int64 // blocks that were not kept, because the directory is full or fails
}

const (
	maxLoading = 32 // blocks fetched ahead at a time
	// A block that was loaded ahead, and has not been read for so long, is worth no more than others.
	patience = 30 * time.Second
	// A block that was not written for so long is not, because others need the memory. None is to be written meanwhile.
	slowest = 5 * time.Second
)

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
	at      *list.Element // in recent
}

// New returns a cache. It touches nothing.
func New(o Options, log *slog.Logger) *Cache {
	c := &Cache{o: o, entries: map[key]*entry{}}
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
func (o *Object) Counts() *Counts { return &o.cache.Counts }

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
		c.Counts.Waits.Add(1)
		c.Counts.Waited.Add(int64(time.Since(began)))
	default:
		c.Counts.Hits.Add(1)
	}
	return Block{Bytes: e.bytes, entry: e}, nil
}

// Want says when a block will be wanted, after the blocks of earlier calls. It does not wait. It returns false if there is no room for the
// block yet.
func (o *Object) Want(index int64, t Demand) bool {
	c, k := o.cache, key{o, index}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil {
		e.needs = add(e.needs, t)
		return true
	}
	if o.IsOnDisk(index) {
		return true
	}
	queued := 0 // of the same stream
	for _, e := range c.queue {
		if len(e.needs) > 0 && e.needs[0].by == t.By || len(e.needs) == 0 && t.By == nil {
			queued++
		}
	}
	if queued >= c.o.Slots() {
		return false
	}
	c.enqueue(k, add(nil, t))
	c.pump()
	return true
}

// enqueue has a block loaded ahead. The caller holds mu.
func (c *Cache) enqueue(k key, needs []need) {
	e := c.add(k, needs)
	e.queued = true
	c.queue = append(c.queue, e)
}

func (c *Cache) unqueue(e *entry) {
	e.queued = false
	c.queue = slices.DeleteFunc(c.queue, func(of *entry) bool { return of == e })
}

// pump begins to load blocks that are wanted ahead, while there are slots. The caller holds mu.
func (c *Cache) pump() {
	for c.mayLoad() {
		e := c.nearest()
		if e == nil {
			return
		}
		if e.key.object.IsOnDisk(e.key.index) {
			delete(c.entries, e.key)
		} else {
			if e.bytes = c.slot(false); e.bytes == nil {
				return
			}
			e.ahead = true
			go c.load(e)
		}
		c.unqueue(e)
	}
}

// mayLoad reports whether one more block may be fetched ahead. The caller holds mu.
func (c *Cache) mayLoad() bool {
	loading, unread := 0, 0
	for _, e := range c.entries {
		if e.ahead && e.at == nil {
			loading++
		}
		if w, _ := e.worth(); w == isAhead && !e.queued {
			unread++
		}
	}
	return loading < maxLoading && unread < c.o.aheadSlots()
}

// nearest is the block of the queue that is needed first, or nil. It drops those that are needed no more. The caller holds mu.
func (c *Cache) nearest() (nearest *entry) {
	least := uint64(0)
	c.queue = slices.DeleteFunc(c.queue, func(e *entry) bool {
		d, ok := next(e.needs)
		if !ok && len(e.needs) > 0 {
			delete(c.entries, e.key)
			return true
		}
		if nearest == nil || d < least { // soon, where no stream needs it
			nearest, least = e, d
		}
		return false
	})
	return nearest
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
	if c.disk != nil {
		if found := c.disk.verify(k); found != nil {
			k.object.onDisk[k.index].Store(found)
			c.loadedFrom(e, slot, nil)
			return
		}
	}
	if slot == nil {
		c.mu.Lock()
		for slot = c.slot(true); slot == nil; slot = c.slot(true) {
			c.wait()
		}
		c.mu.Unlock()
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
		if c.disk != nil && c.disk.writable() && !c.stuck() {
			e.pending = true
			c.pending = append(c.pending, e)
			if !c.writing {
				c.writing, c.began = true, time.Now()
				go c.write()
			}
		} else if c.disk != nil {
			c.Counts.Full.Add(1)
		}
	}
	close(e.done)
	c.changed.Broadcast()
	c.pump()
}

// slot returns memory for a block, or nil if there is none yet. It evicts a block that has no reader, need not be written and was not fetched
// ahead in vain; unless now is set, because a reader waits, only one that was read. The caller holds mu.
func (c *Cache) slot(now bool) []byte {
	if n := len(c.free); n > 0 {
		slot := c.free[n-1]
		c.free = c.free[:n-1]
		c.taken++
		return slot
	}
	if c.taken < c.o.Slots() {
		c.taken++
		return make([]byte, c.o.BlockBytes)
	}
	var victim *entry
	var worth int       // of victim: of those that are worth less, the first; of those that are wanted ahead, the one wanted last
	var distance uint64 // of victim
	for at := c.recent.Front(); at != nil; at = at.Next() {
		if e := at.Value.(*entry); e.refs == 0 {
			if w, d := e.worth(); victim == nil || w < worth || w == worth && w == isWanted && d >= distance {
				victim, worth, distance = e, w, d
			}
		}
	}
	if victim == nil || worth >= isPending || !now && worth > isRead {
		return nil
	}
	if victim.pending {
		c.pending = slices.DeleteFunc(c.pending, func(e *entry) bool { return e == victim })
		c.Counts.Full.Add(1)
	}
	c.remove(victim)
	if needs := later(victim.needs); len(needs) > 0 {
		c.enqueue(victim.key, needs)
	}
	return victim.bytes[:c.o.BlockBytes]
}

// What a block in memory is worth.
const (
	isRead    = iota // no reader is known to need it
	isPassed         // a stream needed it until just now: a thread may be behind
	isWanted         // a stream will need it
	isLate           // to be written: the directory should have it by now
	isPending        // to be written to the directory
	isAhead          // fetched, or being fetched, before its reader needs it, who has not read it yet
)

// worth is what the block is worth, and if it is wanted, after how many batches. The caller holds Cache.mu.
func (e *entry) worth() (worth int, batches uint64) {
	d, wanted := next(e.needs)
	switch {
	case !e.read && (wanted || len(e.needs) == 0 && (e.at == nil || time.Since(e.loaded) < patience)):
		return isAhead, d
	case e.pending && time.Since(e.loaded) < slowest:
		return isPending, 0
	case e.pending:
		return isLate, 0
	case wanted:
		return isWanted, d
	case slices.ContainsFunc(e.needs, need.isPassed):
		return isPassed, 0
	}
	return isRead, 0
}

// remove takes an entry out of memory. Its slot is the caller's, who holds mu.
func (c *Cache) remove(e *entry) {
	c.recent.Remove(e.at)
	delete(c.entries, e.key)
}

func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.refs--; e.refs == 0 {
		c.changed.Broadcast()
		c.pump()
	}
}

// write writes what is pending to the directory.
func (c *Cache) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) > 0 {
		e := c.pending[0]
		c.pending = c.pending[1:]
		e.refs++
		c.began = time.Now()
		c.mu.Unlock()
		if written := c.disk.write(e.key, e.bytes); written != nil {
			e.key.object.onDisk[e.key.index].Store(written)
		} else {
			c.Counts.Full.Add(1)
		}
		c.release(e)
		c.mu.Lock()
		e.pending = false
		c.changed.Broadcast()
	}
	c.writing = false
	c.changed.Broadcast()
}

// stuck reports whether a block waits for the disk, or for the lock of another process, for too long. The caller holds mu.
func (c *Cache) stuck() bool { return c.writing && time.Since(c.began) > slowest }

// wait waits for a change, or until what is to be written has waited for too long. The caller holds mu.
func (c *Cache) wait() {
	defer time.AfterFunc(slowest, c.changed.Broadcast).Stop()
	c.changed.Wait()
}

// Flush returns when the directory has what was fetched, or is known not to take it, and frees unused memory.
func (c *Cache) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing && !c.stuck() {
		c.wait()
	}
	c.pending = nil
	for at := c.recent.Front(); at != nil; {
		e := at.Value.(*entry)
		at = at.Next()
		if e.refs == 0 {
			c.remove(e)
			c.taken--
		}
	}
	c.free = nil
}

// MemoryBytes is the memory of blocks.
func (c *Cache) MemoryBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.taken+len(c.free)) * c.o.BlockBytes
}
