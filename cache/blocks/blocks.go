// Package blocks caches blocks of objects: a few in memory, and many as files of a directory that all
// processes of a user share.
//
// A block is read from the directory if it is there, and fetched from the store otherwise: once,
// however many readers need it. A fetched block is served from memory and written to the directory
// meanwhile. A full directory evicts no block that its readers need: they read every block once an
// epoch, so replacing one would only cause more fetches. Blocks that no reader needs make room: see
// WorkingSet.
package blocks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"batchfs/cache/counts"
	"batchfs/cache/localfile"
	"batchfs/cache/store"
)

// Options configure a Cache.
type Options struct {
	Dir           string // directory that all processes of a user share on this host; empty: none
	GroupWritable bool   // whether a group, whose members are trusted, may use Dir
	Limit         int64  // maximum size of the blocks in Dir, in bytes
	BlockBytes    int64
	Memory        int64 // maximum size of the blocks in memory, in bytes; two blocks at least

	// PrefetchTimeout is the timeout for fetching a block that no reader waits for yet, so that the
	// fetch does not hold memory for long during an outage; 0: none.
	PrefetchTimeout time.Duration

	Counts Counts // zero: each cache has its own
}

// Counts are the counters of a cache. Shared memory holds them in two places.
type Counts struct {
	*counts.Blocks
	*counts.Writes
}

// MaxBuffers returns the maximum number of blocks in memory.
func (o Options) MaxBuffers() int { return int(max(o.Memory/o.BlockBytes, 2)) }

// Fetch fills dst with the bytes of an object from off on, or returns an error.
type Fetch func(ctx context.Context, o store.Object, off int64, dst []byte) error

// A Cache caches blocks of objects. It is safe for concurrent use.
type Cache struct {
	o    Options
	disk *disk // nil if there is no directory

	mu      sync.Mutex
	changed sync.Cond           // a buffer may be free, or a write has ended; its lock is mu
	cached  map[key]*cacheBlock // blocks queued, loading or in memory; guarded by mu, like all below
	queued  int                 // blocks in cached that are queued
	order   uint64              // last cacheBlock.order
	free    [][]byte            // unused buffers
	taken   int                 // buffers in use
	pending []*cacheBlock       // blocks to be written, oldest first
	writing bool                // a goroutine is writing them
	began   time.Time           // when the current write began
}

// These are the reasons why a fetched block is not written to the directory. Any other error means that
// the directory failed.
var (
	errPresent = errors.New("another process has written the block already")
	ErrFull    = errors.New("store.cache_dir has no more room")
	ErrSlow    = errors.New("a block could not be written in time: its disk is slow, or another process holds the lock of store.cache_dir")
)

// count counts the outcome of writing a block, and returns it, or nil if the directory has the block,
// no matter which process wrote it.
func (c *Cache) count(outcome error) error {
	switch {
	case outcome == nil:
	case errors.Is(outcome, errPresent):
		c.o.Counts.Present.Add(1)
		return nil
	case errors.Is(outcome, ErrFull):
		c.o.Counts.Full.Add(1)
	case errors.Is(outcome, ErrSlow):
		c.o.Counts.Slow.Add(1)
	default:
		c.o.Counts.Failed.Add(1)
	}
	return outcome
}

// A key names a block.
type key struct {
	object *CachedObject
	index  int64
}

// A blockState is a step in the life of a block that is not, or not only, in the directory.
//
//	queued → loading → inMemory → evicted, and queued again if a stream will need it
//
// A block that a reader waits for is not queued before it is loaded. A block that turns out to be in
// the directory, or cannot be fetched, ends there. An evicted block is read from its file, if this
// process wrote one.
type blockState int

const (
	queued blockState = iota // waits to be prefetched, and has no buffer yet
	loading
	inMemory
)

// A cacheBlock is a block that is queued, loading or in memory.
type cacheBlock struct {
	key        key
	done       chan struct{} // closed when loading ends; the fields down to loaded are set before that
	err        error         // error of the fetch
	bytes      []byte        // content, in a buffer; nil if a file has it, or loading failed
	prefetched bool          // loading began before a reader waited for the block
	loaded     time.Time
	state      blockState      // guarded by Cache.mu, like all fields below
	order      uint64          // when it was queued, or last read if in memory: a later one is greater
	refs       int             // readers, plus one while it is being written
	read       bool            // a reader has asked for it
	needs      []need          // streams that need it, and when
	pending    bool            // waits to be written, or is being written
	outcome    error           // reason why the directory lacks it; nil while pending or if written
	file       *localfile.File // file that this process wrote; nil if none
}

// New returns a cache. It does not touch the directory.
func New(o Options, log *slog.Logger) *Cache {
	o.Counts = cmp.Or(o.Counts, Counts{new(counts.Blocks), new(counts.Writes)})
	c := &Cache{o: o, cached: map[key]*cacheBlock{}}
	c.changed.L = &c.mu
	if o.Dir != "" {
		c.disk = &disk{dir: o.Dir, groupWritable: o.GroupWritable, limit: o.Limit, log: log, sets: map[string]*WorkingSet{}}
		c.disk.none = WorkingSet{disk: c.disk, Blocks: 1000}
	}
	return c
}

// A CachedObject is an object whose blocks are cached. It is safe for concurrent use.
type CachedObject struct {
	store.Object
	cache         *Cache
	identity      identity
	fetch         Fetch
	dropPageCache bool

	// files are the files of blocks that this process wrote or verified, by index. A block gets its
	// file here when it leaves memory. A read that finds a file needs no lock.
	files []atomic.Pointer[localfile.File]
}

// Object returns an object of the store at an endpoint. Its bytes come from fetch. If dropPageCache is
// true, each read of a block file drops the pages that it read from the page cache.
func (c *Cache) Object(endpoint string, o store.Object, fetch Fetch, dropPageCache bool) *CachedObject {
	object := &CachedObject{Object: o, cache: c, fetch: fetch, dropPageCache: dropPageCache,
		identity: identity{endpoint, o.Bucket, o.Key, o.ETag, o.Size, c.o.BlockBytes}}
	object.files = make([]atomic.Pointer[localfile.File], (o.Size+c.o.BlockBytes-1)/c.o.BlockBytes)
	return object
}

// Holding returns the blocks of size bytes that hold the bytes [from, to) of an object.
func Holding(from, to, size int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for i := from / size; i*size < to && yield(i); i++ {
		}
	}
}

// An ObjectRange is the bytes [From, To) of an object.
type ObjectRange struct {
	Object   *CachedObject
	From, To int64
}

// Blocks returns the indexes of the blocks that hold the range.
func (r ObjectRange) Blocks() iter.Seq[int64] {
	return Holding(r.From, r.To, r.Object.cache.o.BlockBytes)
}

// Block returns the range of a block.
func (o *CachedObject) Block(index int64) ObjectRange {
	from := index * o.cache.o.BlockBytes
	return ObjectRange{o, from, min(from+o.cache.o.BlockBytes, o.Size)}
}

func (k key) bytes() int64 {
	block := k.object.Block(k.index)
	return block.To - block.From
}

// Read calls visit for each range, in any order, with the range's Index and its bytes, valid during
// the call only. An error of visit ends the read and is returned. If the file of a block turns out to
// be damaged, the ranges in that block are visited again. Read may change ranges.
func (o *CachedObject) Read(ranges []localfile.Range, visit func(index int, raw []byte) error) error {
	localfile.SortRanges(ranges) // so that each block is fetched once
	for _, r := range ranges {   // all at once, as far as there is room
		if !(ObjectRange{o, r.From, r.To}).Prefetch(Demand{}) {
			break
		}
	}
	return localfile.ReadPieces(ranges, o.piece, o.readBlock, visit)
}

// piece returns the block that holds a byte of the object.
func (o *CachedObject) piece(at int64) localfile.Piece {
	index := at / o.cache.o.BlockBytes
	block := o.Block(index)
	return localfile.Piece{Index: index, Start: block.From, End: block.To}
}

// maxTries limits how often one read may find another file in place of a block's.
const maxTries = 5

// readBlock reads ranges of a block's bytes: from its file if that is known, and from memory
// otherwise. If the file is not what it was, readBlock fetches the block and visits all ranges again.
func (o *CachedObject) readBlock(index int64, ranges []localfile.Range, visit func(int, []byte) error) error {
	for try := 1; ; try++ {
		if f := o.files[index].Load(); f != nil {
			var refused error
			err := f.Read(ranges, func(i int, raw []byte) error {
				refused = visit(i, raw)
				return refused
			})
			if err == nil || errors.Is(err, refused) {
				o.cache.o.Counts.Hits.Add(1)
				return err
			}
			o.files[index].CompareAndSwap(f, nil)
			if try == maxTries {
				if changed := (*localfile.ChangedError)(nil); errors.As(err, &changed) {
					err = fmt.Errorf("store.cache_dir: its disk returns other bytes than were written: %s: %s", changed.Path, changed.How)
				}
				return err
			}
		}
		b, err := o.get(index)
		if err != nil {
			return err
		}
		if b != nil {
			defer o.cache.release(b)
			for _, r := range ranges {
				if err := visit(r.Index, b.bytes[r.From:r.To]); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

// Release closes the files of blocks that stay open between reads. While one is open, the space of a
// deleted file is not freed.
func (o *CachedObject) Release() {
	for i := range o.files {
		if f := o.files[i].Load(); f != nil {
			f.Release()
		}
	}
}

// get returns a block in memory, which it loads unless it is there, or nil if the block's file is
// known. The caller must release the block, and must not wait for another one meanwhile.
func (o *CachedObject) get(index int64) (*cacheBlock, error) {
	c, k := o.cache, key{o, index}
	c.mu.Lock()
	b := c.cached[k]
	if b == nil || b.state == queued {
		if o.files[index].Load() != nil {
			c.mu.Unlock()
			return nil, nil
		}
		if b == nil {
			b = c.add(k, nil)
		}
		c.startLoad(b)
	}
	c.setOrder(b)
	b.refs++
	b.read = true
	began, waited := time.Now(), b.state == loading
	c.mu.Unlock()
	<-b.done
	switch {
	case b.bytes == nil:
		if b.err != nil && !b.prefetched {
			return nil, b.err
		}
		return o.get(index) // its file is known now, or it is fetched without the timeout of a prefetch
	case waited:
		c.o.Counts.Waits.Add(1)
		c.o.Counts.Waited.Add(int64(time.Since(began)))
	default:
		c.o.Counts.Hits.Add(1)
	}
	return b, nil
}

// Persist fetches a block unless the directory has it, and waits until it is written there. It
// returns the store's error, ErrFull, ErrSlow, or the failure of the directory.
func (o *CachedObject) Persist(index int64) error {
	began, c := time.Now(), o.cache
	b, err := o.get(index)
	if b == nil {
		return err
	}
	defer c.release(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.outcome != nil && (errors.Is(b.outcome, ErrSlow) || b.loaded.Before(began)) {
		// Try again: a caller waits for the write now, and the block may belong to a working set
		// that makes room.
		c.enqueueWrite(b)
	}
	for b.pending && !c.stuck(persistTimeout) {
		c.wait()
	}
	if b.pending {
		return fmt.Errorf("%s: %w", c.o.Dir, ErrSlow)
	}
	return b.outcome
}

// add queues a block to be prefetched. The caller holds mu.
func (c *Cache) add(k key, needs []need) *cacheBlock {
	b := &cacheBlock{key: k, done: make(chan struct{}), needs: needs}
	c.setOrder(b)
	c.cached[k] = b
	c.queued++
	return b
}

// drop removes a queued block. The caller holds mu.
func (c *Cache) drop(b *cacheBlock) {
	c.queued--
	delete(c.cached, b.key)
}

// startLoad begins to load a queued block. The caller holds mu.
func (c *Cache) startLoad(b *cacheBlock) {
	c.queued--
	b.state = loading
	go c.load(b)
}

// setOrder makes b the last in order. The caller holds mu.
func (c *Cache) setOrder(b *cacheBlock) {
	c.order++
	b.order = c.order
}

// load looks for a block in the directory, and fetches it from the store if it is not there. A block
// that is prefetched comes with a buffer in bytes.
func (c *Cache) load(b *cacheBlock) {
	buffer := b.bytes
	b.bytes = nil
	found := c.find(b.key)
	if !found && buffer == nil {
		var waited bool
		if buffer, waited = c.waitForBuffer(); waited {
			found = c.find(b.key) // another process may have written it meanwhile
		}
	}
	if !found {
		b.err = c.fetch(b, buffer[:b.key.bytes()])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found || b.err != nil {
		delete(c.cached, b.key)
		if buffer != nil {
			c.taken--
			c.free = append(c.free, buffer)
		}
	} else {
		b.bytes, b.loaded, b.state = buffer[:b.key.bytes()], time.Now(), inMemory
		c.setOrder(b)
		if c.stuck(writeTimeout) {
			b.outcome = c.count(ErrSlow)
		} else if c.disk != nil {
			c.enqueueWrite(b)
		}
	}
	close(b.done)
	c.changed.Broadcast()
	c.pump()
}

// fetch fills dst with a block.
func (c *Cache) fetch(b *cacheBlock, dst []byte) error {
	ctx := context.Background()
	if b.prefetched && c.o.PrefetchTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.PrefetchTimeout)
		defer cancel()
	}
	o := b.key.object
	return o.fetch(ctx, o.Object, o.Block(b.key.index).From, dst)
}

// find reports whether the directory has an intact copy of a block, and records its file if so.
func (c *Cache) find(k key) bool {
	if c.disk == nil {
		return false
	}
	f := c.disk.verify(k)
	k.object.files[k.index].Store(f)
	return f != nil
}
