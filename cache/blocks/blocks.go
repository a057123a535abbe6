// Package blocks caches objects of a store in cache blocks of equal size: a few in memory, and many
// as files of a directory that all processes of a user share.
//
// A [CachedObject] reads a block from the directory if it is there. Otherwise it fetches the block
// from the store, once for all waiting readers, and serves it from memory while it is written to
// the directory.
//
// A full directory keeps the blocks that its readers need: they read every block once per epoch, so
// replacing one would only cause more fetches. See [WorkingSet] for what it evicts.
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
	Dir           string // directory that all processes of a user share; empty: memory only
	GroupWritable bool   // whether a group of trusted users shares Dir
	Limit         int64  // limit on the block files in Dir, in bytes
	BlockBytes    int64  // size of a cache block; the last one of an object may be shorter
	Memory        int64  // limit on the blocks in memory, in bytes; at least two are kept

	// PrefetchTimeout limits fetches that no reader waits for, so that they do not hold memory for
	// long during an outage; 0: no limit.
	PrefetchTimeout time.Duration

	Counts Counts // zero: the cache has its own
}

// Counts are the counters of a cache, in two parts because shared memory holds them in two places.
type Counts struct {
	*counts.Blocks
	*counts.Writes
}

// MaxBuffers returns the maximum number of blocks in memory.
func (o Options) MaxBuffers() int { return int(max(o.Memory/o.BlockBytes, 2)) }

// A Fetch fills dst with the bytes of an object, starting at off.
type Fetch func(ctx context.Context, o store.Object, off int64, dst []byte) error

// A Cache caches blocks of objects. It is safe for concurrent use.
type Cache struct {
	o    Options
	disk *disk // nil if Options.Dir is empty

	mu           sync.Mutex // guards the fields below
	changed      sync.Cond  // signals that a buffer may be free or a write has ended
	cached       map[key]*cacheBlock
	queuedBlocks int
	lastOrder    uint64
	freeBuffers  [][]byte
	usedBuffers  int
	turn         uint64        // turn of the reader that is next; nextTurn if none waits
	nextTurn     uint64        // turn of the next reader that needs a buffer
	writeQueue   []*cacheBlock // oldest first
	writing      bool          // whether a goroutine runs write
	writeBegan   time.Time     // start of the current write
}

// Reasons why a fetched block was not written to the directory. Any other error means that the
// directory failed.
var (
	errPresent = errors.New("another process has written the block already")
	ErrFull    = errors.New("store.cache_dir has no more room")
	ErrSlow    = errors.New("a block could not be written in time: its disk is slow, or another process holds the lock of store.cache_dir")
)

// countOutcome counts the outcome of writing a block. It returns nil if the directory has the
// block, even if another process wrote it, and otherwise outcome.
func (c *Cache) countOutcome(outcome error) error {
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

type key struct {
	object *CachedObject
	index  int64
}

// A blockState is a step in the life of a cache block outside the directory.
//
//	queued → loading → inMemory → evicted (or queued again if a stream will need it)
//
// If a reader waits for a block, loading begins immediately. After loading, a block that is in the
// directory or could not be fetched is forgotten. An evicted block is read from its file, if this
// process wrote one.
type blockState int

const (
	queued blockState = iota
	loading
	inMemory
)

// A cacheBlock is a cache block outside the directory.
type cacheBlock struct {
	key          key
	loadDone     chan struct{} // closed when loading ends, after fetchErr and bytes are set
	fetchErr     error
	bytes        []byte // nil if a file has them, or loading failed
	prefetched   bool   // whether loading began before a reader waited for it
	loadedAt     time.Time
	state        blockState      // guarded by Cache.mu, like all fields below
	order        uint64          // greater than in any block queued, loaded or read earlier
	refs         int             // number of readers, plus one while the block is being written
	requested    bool            // whether a reader has waited for it or read it
	needs        []need          // batches that need it, by stream
	writePending bool            // whether it waits to be written, or is being written
	writeErr     error           // nil if written or pending
	file         *localfile.File // nil unless this process wrote it
}

// New returns a cache, and does not access the directory.
func New(o Options, log *slog.Logger) *Cache {
	o.Counts = cmp.Or(o.Counts, Counts{new(counts.Blocks), new(counts.Writes)})
	c := &Cache{o: o, cached: map[key]*cacheBlock{}}
	c.changed.L = &c.mu
	if o.Dir != "" {
		c.disk = &disk{dir: o.Dir, groupWritable: o.GroupWritable, limit: o.Limit, log: log, workingSets: map[string]*WorkingSet{}}
		// makeRoom measures the directory once per 50 of these blocks.
		c.disk.unclaimed = WorkingSet{disk: c.disk, Blocks: 50 * refusalRounds}
	}
	return c
}

// A CachedObject reads an object of a store through the cache. It is safe for concurrent use.
type CachedObject struct {
	store.Object
	cache         *Cache
	id            objectID
	fetch         Fetch
	dropPageCache bool

	// files has the file of each block that this process wrote or verified, by index. A block in
	// memory gets its file when it is evicted.
	files []atomic.Pointer[localfile.File]
}

// Object returns o, an object of the store at endpoint, as read through the cache with fetch. If
// dropPageCache is true, each read drops its pages from the page cache.
func (c *Cache) Object(endpoint string, o store.Object, fetch Fetch, dropPageCache bool) *CachedObject {
	object := &CachedObject{Object: o, cache: c, fetch: fetch, dropPageCache: dropPageCache,
		id: objectID{endpoint, o.Bucket, o.Key, o.ETag, o.Size, c.o.BlockBytes}}
	object.files = make([]atomic.Pointer[localfile.File], (o.Size+c.o.BlockBytes-1)/c.o.BlockBytes)
	return object
}

// Holding returns the indexes of the blocks of size bytes that hold the bytes [from, to).
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

// Blocks returns the indexes of the cache blocks that hold the range.
func (r ObjectRange) Blocks() iter.Seq[int64] {
	return Holding(r.From, r.To, r.Object.cache.o.BlockBytes)
}

// Block returns the range that a cache block holds.
func (o *CachedObject) Block(index int64) ObjectRange {
	from := index * o.cache.o.BlockBytes
	return ObjectRange{o, from, min(from+o.cache.o.BlockBytes, o.Size)}
}

// bytes returns the size of the block, without its trailer.
func (k key) bytes() int64 {
	block := k.object.Block(k.index)
	return block.To - block.From
}

// Read has the contract of Read in blob.Blob. If the file of a block is damaged, ranges in that
// block are visited again.
func (o *CachedObject) Read(ranges []localfile.Range, visit func(index int, raw []byte) error) error {
	localfile.SortRanges(ranges) // load each block once
	for _, r := range ranges {   // loads as many blocks at the same time as memory allows
		if !(ObjectRange{o, r.From, r.To}).Prefetch(Demand{}) {
			break
		}
	}
	return localfile.ReadPieces(ranges, o.pieceAt, o.readBlock, visit)
}

func (o *CachedObject) pieceAt(pos int64) localfile.Piece {
	index := pos / o.cache.o.BlockBytes
	block := o.Block(index)
	return localfile.Piece{Index: index, Start: block.From, End: block.To}
}

// maxTries is how often a read tries the file of a block.
const maxTries = 5

// readBlock visits ranges of one block, from its file if that is known, and otherwise from memory.
// If the file has changed, it visits all of them again from a new copy.
func (o *CachedObject) readBlock(index int64, ranges []localfile.Range, visit func(int, []byte) error) error {
	for try := 1; ; try++ {
		if f := o.files[index].Load(); f != nil {
			var visitErr error
			err := f.Read(ranges, func(i int, raw []byte) error {
				visitErr = visit(i, raw)
				return visitErr
			})
			if err == nil || errors.Is(err, visitErr) {
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

// Release closes the block files kept open between reads, which frees the space of deleted files.
// It also drops the locks of the working sets to which the object belongs, so that this process no
// longer counts as a reader of their blocks until it reads them again.
func (o *CachedObject) Release() {
	for i := range o.files {
		if f := o.files[i].Load(); f != nil {
			f.Release()
		}
	}
	if d := o.cache.disk; d != nil {
		d.releaseSetsOf(o.id.name())
	}
}

// get returns a block in memory, loading it if necessary, or nil if its file is known. The caller
// must release the block before it waits for another one.
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
			b = c.enqueuePrefetch(k, nil)
		}
		c.startLoad(b)
	}
	c.markLatest(b)
	b.refs++
	b.requested = true
	began, waited := time.Now(), b.state == loading
	c.mu.Unlock()
	<-b.loadDone
	switch {
	case b.bytes == nil:
		if b.fetchErr != nil && !b.prefetched {
			return nil, b.fetchErr
		}
		return o.get(index) // either finds the file, or fetches without the prefetch timeout
	case waited:
		c.o.Counts.Waits.Add(1)
		c.o.Counts.WaitNanos.Add(int64(time.Since(began)))
	default:
		c.o.Counts.Hits.Add(1)
	}
	return b, nil
}

// Persist fetches a block unless the directory has it, and waits until it is written. The error is
// that of the store, ErrFull, ErrSlow, or the failure of the directory.
func (o *CachedObject) Persist(index int64) error {
	began, c := time.Now(), o.cache
	b, err := o.get(index)
	if b == nil {
		return err
	}
	defer c.release(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.writeErr != nil && (errors.Is(b.writeErr, ErrSlow) || b.loadedAt.Before(began)) {
		// Try again: this caller waits longer for a write than a fetch does, and by now the block
		// may belong to a working set for which other blocks are evicted.
		c.enqueueWrite(b)
	}
	for b.writePending && !c.isWriteStuck(persistTimeout) {
		c.wait()
	}
	if b.writePending {
		return fmt.Errorf("%s: %w", c.o.Dir, ErrSlow)
	}
	return b.writeErr
}

// enqueuePrefetch adds a block that will be fetched for needs. The caller holds mu.
func (c *Cache) enqueuePrefetch(k key, needs []need) *cacheBlock {
	b := &cacheBlock{key: k, loadDone: make(chan struct{}), needs: needs}
	c.markLatest(b)
	c.cached[k] = b
	c.queuedBlocks++
	return b
}

// dropQueued removes a block whose fetch has not begun. The caller holds mu.
func (c *Cache) dropQueued(b *cacheBlock) {
	c.queuedBlocks--
	delete(c.cached, b.key)
}

// startLoad starts loading a queued block. The caller holds mu.
func (c *Cache) startLoad(b *cacheBlock) {
	c.queuedBlocks--
	b.state = loading
	go c.load(b)
}

// markLatest makes b the latest block. The caller holds mu.
func (c *Cache) markLatest(b *cacheBlock) {
	c.lastOrder++
	b.order = c.lastOrder
}

// load looks for a block in the directory, and otherwise fetches it. A prefetched block arrives
// with its buffer in b.bytes; any other block waits for one.
func (c *Cache) load(b *cacheBlock) {
	buffer := b.bytes
	b.bytes = nil
	found := c.findOnDisk(b.key)
	if !found && buffer == nil {
		var waited bool
		if buffer, waited = c.waitForBuffer(); waited {
			found = c.findOnDisk(b.key) // another process may have written it meanwhile
		}
	}
	if !found {
		b.fetchErr = c.fetch(b, buffer[:b.key.bytes()])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found || b.fetchErr != nil {
		delete(c.cached, b.key)
		if buffer != nil {
			c.usedBuffers--
			c.freeBuffers = append(c.freeBuffers, buffer)
		}
	} else {
		b.bytes, b.loadedAt, b.state = buffer[:b.key.bytes()], time.Now(), inMemory
		c.markLatest(b)
		if c.isWriteStuck(writeTimeout) {
			b.writeErr = c.countOutcome(ErrSlow)
		} else if c.disk != nil {
			c.enqueueWrite(b)
		}
	}
	close(b.loadDone)
	c.changed.Broadcast()
	c.startPrefetches()
}

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

// findOnDisk reports whether the directory has an intact copy of a block, and records its file.
func (c *Cache) findOnDisk(k key) bool {
	if c.disk == nil {
		return false
	}
	f := c.disk.verify(k)
	k.object.files[k.index].Store(f)
	return f != nil
}
