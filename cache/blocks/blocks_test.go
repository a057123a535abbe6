package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cache/localfile"
	"batchfs/cache/store"
	"batchfs/internal/privatedir"
	"batchfs/internal/testwait"
)

const blockBytes = 4096

// A fakeStore is a store with one object. It counts fetches.
type fakeStore struct {
	content         []byte
	fetched         atomic.Int64
	fetchesByOffset sync.Map // *atomic.Int64 by offset of the block
	fail            atomic.Bool
	gate            chan struct{} // fetches wait until it is closed, unless it is nil
	latency         time.Duration // how long a fetch takes
}

func newFakeStore(n int) *fakeStore {
	s := &fakeStore{content: make([]byte, n)}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range s.content {
		s.content[i] = byte(r.Uint32())
	}
	return s
}

var errStore = errors.New("the store is away")

func (s *fakeStore) fetch(_ context.Context, _ store.Object, off int64, dst []byte) error {
	if s.gate != nil {
		<-s.gate
	}
	time.Sleep(s.latency)
	if s.fail.Load() {
		return errStore
	}
	s.fetched.Add(1)
	n, _ := s.fetchesByOffset.LoadOrStore(off, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	copy(dst, s.content[off:])
	return nil
}

// open returns the object in the cache of a new process.
func (s *fakeStore) open(t *testing.T, o Options, log io.Writer, name string) *CachedObject {
	c := New(o, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(c.Flush)
	return c.Object("http://store", store.Object{Scheme: "s3", Bucket: "bucket", Key: name, ETag: "1", Size: int64(len(s.content))}, s.fetch, false)
}

func (s *fakeStore) checkBlock(t *testing.T, o *CachedObject, i int64) {
	t.Helper()
	if err := s.compareBlock(o, i); err != nil {
		t.Error(err)
	}
}

func (s *fakeStore) compareBlock(o *CachedObject, i int64) error {
	block := o.Block(i)
	return o.Read([]localfile.Range{{From: block.From, To: block.To}}, func(_ int, raw []byte) error {
		if !bytes.Equal(raw, s.content[block.From:block.To]) {
			return fmt.Errorf("block %d has other bytes", i)
		}
		return nil
	})
}

func (o *CachedObject) blockCount() int64 { return int64(len(o.files)) }

func (o *CachedObject) prefetch(i int64, d Demand) bool { return o.Block(i).Prefetch(d) }

func readAll(t *testing.T, s *fakeStore, o *CachedObject) {
	t.Helper()
	for i := range o.blockCount() {
		s.checkBlock(t, o, i)
	}
}

func options(t *testing.T, blocks int64) Options {
	return Options{Dir: filepath.Join(t.TempDir(), "cache"), Limit: blocks * (blockBytes + trailerBytes), BlockBytes: blockBytes, Memory: 4 * blockBytes}
}

// Each block is fetched once, however many readers there are, and other processes find it in the
// directory.
func TestEachBlockIsFetchedOnce(t *testing.T) {
	s := newFakeStore(20*blockBytes + 100)
	o := options(t, 100)
	first := s.open(t, o, io.Discard, "a")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range first.blockCount() {
				first.prefetch((i+1)%first.blockCount(), Demand{})
				if err := s.compareBlock(first, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	testwait.End(t, "the goroutines", all.Wait)
	first.cache.Flush()
	for range 3 {
		again := s.open(t, o, io.Discard, "a")
		for i := range again.blockCount() {
			again.prefetch(i, Demand{})
		}
		readAll(t, s, again)
	}
	if n := s.fetched.Load(); n != first.blockCount() {
		t.Errorf("%d blocks were fetched, want %d", n, first.blockCount())
	}
	if n := first.cache.MemoryBytes(); n != 0 {
		t.Errorf("%d bytes of memory are kept after Flush", n)
	}
}

// outcomes returns how many fetched blocks were not written, by reason.
func (o *CachedObject) outcomes() (full, present, failed, slow int64) {
	c := o.cache.o.Counts
	return c.Full.Load(), c.Present.Load(), c.Failed.Load(), c.Slow.Load()
}

// If several processes fetch the same blocks at the same time, the directory ends up with every
// block, and no process fetches one twice.
func TestSameBlocksAtOnce(t *testing.T) {
	const blocks, processes = 4, 3
	s, o := newFakeStore(blocks*blockBytes), options(t, 100)
	o.Memory = blocks * blockBytes
	s.gate = make(chan struct{})
	var all sync.WaitGroup
	var objects []*CachedObject
	var under atomic.Int64
	for range processes {
		object := s.open(t, o, io.Discard, "a")
		fetch := object.fetch
		object.fetch = func(ctx context.Context, o store.Object, off int64, dst []byte) error {
			under.Add(1)
			return fetch(ctx, o, off, dst)
		}
		for i := range object.blockCount() {
			all.Go(func() {
				if err := object.Persist(i); err != nil {
					t.Error(err)
				}
			})
		}
		objects = append(objects, object)
	}
	testwait.Until(t, "fetches of each block by each process", func() (any, bool) { return under.Load(), under.Load() == processes*blocks })
	close(s.gate)
	testwait.End(t, "the processes", all.Wait)
	present := int64(0)
	for _, object := range objects {
		readAll(t, s, object)
		object.cache.Flush()
		readAll(t, s, object)
		full, others, failed, slow := object.outcomes()
		present += others
		if full+failed+slow > 0 {
			t.Errorf("for %d blocks there was no room, %d failed, and %d were slow", full, failed, slow)
		}
	}
	if n := s.fetched.Load(); n != processes*blocks || present != (processes-1)*blocks {
		t.Errorf("%d blocks were fetched, and %d were there when they were written, want %d and %d", n, present, processes*blocks, (processes-1)*blocks)
	}
}

// Memory stays within its limit with and without a directory. An unusable directory makes no
// difference.
func TestWithoutDirectory(t *testing.T) {
	s := newFakeStore(40 * blockBytes)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, dir := range []string{"", file} {
		var log bytes.Buffer
		o := s.open(t, Options{Dir: dir, Limit: 1 << 30, BlockBytes: blockBytes, Memory: 4 * blockBytes}, &log, "a")
		var all sync.WaitGroup
		for n := range uint64(8) {
			all.Go(func() {
				r := rand.New(rand.NewPCG(n, 1))
				for range 200 {
					if err := s.compareBlock(o, r.Int64N(o.blockCount())); err != nil {
						t.Error(err)
					}
				}
			})
		}
		testwait.End(t, "the goroutines", all.Wait)
		if n := o.cache.MemoryBytes(); n > 4*blockBytes {
			t.Errorf("%d bytes of memory, want %d at most", n, 4*blockBytes)
		}
		if n := strings.Count(log.String(), "fails"); dir == "" && n != 0 || dir != "" && n != 1 {
			t.Errorf("directory %q: the log says %d times that it fails:\n%s", dir, n, &log)
		}
	}
}

// A failed fetch fails the readers that wait for it, but no later ones.
func TestStoreFails(t *testing.T) {
	s := newFakeStore(4 * blockBytes)
	o := s.open(t, options(t, 10), io.Discard, "a")
	s.checkBlock(t, o, 0)
	o.cache.Flush()
	s.fail.Store(true)
	for range 10 {
		if err := s.compareBlock(o, 1); !errors.Is(err, errStore) {
			t.Errorf("error %v, want that of the store", err)
		}
	}
	o.prefetch(2, Demand{})
	s.checkBlock(t, o, 0) // block 0 is in the directory
	s.fail.Store(false)
	readAll(t, s, o)
}

// Prefetching stays within its memory, and does not delay a reader that waits.
func TestPrefetchLimits(t *testing.T) {
	s := newFakeStore(100 * blockBytes)
	s.gate = make(chan struct{})
	o := s.open(t, Options{BlockBytes: blockBytes, Memory: 4 * blockBytes}, io.Discard, "a")
	wanted := 0
	for i := range o.blockCount() {
		if o.prefetch(i, Demand{}) {
			wanted++
		}
	}
	if wanted != 7 { // three loading, which leaves a buffer for readers, and four queued
		t.Errorf("there was room for %d blocks, want 7", wanted)
	}
	done := make(chan error, 1)
	go func() { done <- s.compareBlock(o, 50) }()
	close(s.gate)
	if err := testwait.For(t, "a read", done); err != nil {
		t.Error(err)
	}
	readAll(t, s, o)
	if n := o.cache.MemoryBytes(); n > 4*blockBytes {
		t.Errorf("%d bytes of memory, want %d at most", n, 4*blockBytes)
	}
}

// A reader gets a buffer even if blocks that were prefetched in vain are needed again. It does not
// wait until the stream that needs them seems to have ended.
func TestUnreadBlocksAreNeededAgain(t *testing.T) {
	s := newFakeStore(10 * blockBytes)
	o := s.open(t, Options{BlockBytes: blockBytes, Memory: 4 * blockBytes}, io.Discard, "a")
	var stream Stream
	prefetch := func(k uint64, blocks ...int64) {
		stream.Advance(k)
		for _, i := range blocks {
			o.prefetch(i, Demand{&stream, k})
			o.cache.mu.Lock()
			loaded := o.cache.cached[key{o, i}].loadDone
			o.cache.mu.Unlock()
			testwait.For(t, "a prefetch", loaded)
		}
	}
	prefetch(0, 0, 1, 2)
	prefetch(1, 3, 0, 1, 2)
	s.checkBlock(t, o, 9)
	if !stream.isActive() {
		t.Error("the reader has waited for the end of the stream")
	}
}

// A reader gets a buffer even if a write is stuck and all other buffers have blocks that nobody has
// read.
func TestUnreadBlocksAndStuckWrite(t *testing.T) {
	for _, fit := range []int64{2, 4} {
		s, options := newFakeStore(20*blockBytes), options(t, 20)
		options.Memory = fit * blockBytes
		o := s.open(t, options, io.Discard, "a")
		c := o.cache
		must(t, os.Mkdir(options.Dir, 0o700))
		lock, err := os.Open(options.Dir)
		must(t, err, privatedir.Lock(lock, unix.LOCK_EX))
		s.checkBlock(t, o, 10)
		var stream Stream
		stream.Advance(0)
		for i := range fit - 1 {
			o.prefetch(i, Demand{&stream, 0})
		}
		testwait.Until(t, "a write and all prefetches", func() (any, bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			loaded := 0
			for _, b := range c.cached {
				if b.state == inMemory {
					loaded++
				}
			}
			return loaded, loaded == int(fit) && c.cached[key{o, 10}].refs == 1
		})
		c.mu.Lock()
		c.cached[key{o, 10}].loadedAt = time.Now().Add(-2 * writeTimeout)
		c.mu.Unlock()
		s.checkBlock(t, o, 11)
		if !stream.isActive() {
			t.Error("the reader has waited for the end of the stream")
		}
		lock.Close()
	}
}

// Readers that wait for memory get it in turn, even if others prefetch.
func TestReadersTakeTurns(t *testing.T) {
	const readers, blocksEach = 16, 50
	for _, ahead := range []int64{0, 4} {
		s := newFakeStore(readers * blocksEach * blockBytes)
		s.latency = time.Millisecond
		o := s.open(t, Options{BlockBytes: blockBytes, Memory: 4 * blockBytes}, io.Discard, "a")
		var all sync.WaitGroup
		var reads [readers]atomic.Int64
		stop := make(chan struct{})
		for n := range readers {
			all.Go(func() {
				for i := int64(0); ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					block := func(i int64) int64 { return int64(n)*blocksEach + i%blocksEach }
					for a := range ahead {
						o.prefetch(block(i+a), Demand{})
					}
					if err := s.compareBlock(o, block(i)); err != nil {
						t.Error(err)
					}
					reads[n].Add(1)
				}
			})
		}
		testwait.Until(t, "a reader with 100 reads", func() (any, bool) {
			var counts []int64
			for n := range reads {
				counts = append(counts, reads[n].Load())
			}
			return counts, slices.Max(counts) >= 100
		})
		for n := range reads {
			if got := reads[n].Load(); got < 25 {
				t.Errorf("while a reader read 100 times, another one read %d times, want 25 at least", got)
			}
		}
		close(stop)
		testwait.End(t, "the readers", all.Wait)
	}
}

// Blocks stay in memory while a stream needs them for its next batches: with one stream, every
// block is fetched once, and each further stream adds only a few fetches.
func TestStreams(t *testing.T) {
	// extra is how many more fetches each stream after the first may cause.
	const batches, perBlock, extra = 80, 4, 8
	for _, fit := range []int64{4, 8} {
		for _, streams := range []int{1, 2, 3} {
			s := newFakeStore(streams * batches / perBlock * blockBytes)
			o := s.open(t, Options{BlockBytes: blockBytes, Memory: fit * blockBytes}, io.Discard, "a")
			readers, next := make([]Stream, streams), make([]uint64, streams)
			block := func(i int, k uint64) int64 { return int64(i*batches+int(k)) / perBlock }
			for k := range uint64(batches) {
				for i := range readers {
					readers[i].Advance(k)
					for next[i] < batches && o.prefetch(block(i, next[i]), Demand{&readers[i], next[i]}) {
						next[i]++
					}
					s.checkBlock(t, o, block(i, k))
				}
			}
			if most := o.blockCount() + int64(streams-1)*extra; s.fetched.Load() > most {
				t.Errorf("%d streams with memory for %d blocks: %d were fetched, want %d at most", streams, fit, s.fetched.Load(), most)
			}
		}
	}
}

// Without a directory, a request has each of its blocks fetched at most once, however few fit in
// memory and whatever is prefetched meanwhile.
func TestReadThrough(t *testing.T) {
	const batches, perBatch = 60, 10
	for _, fit := range []int64{2, 4, 16} {
		s := newFakeStore(256 * blockBytes)
		o := s.open(t, Options{BlockBytes: blockBytes, Memory: fit * blockBytes}, io.Discard, "a")
		var all sync.WaitGroup
		for n := range uint64(3) {
			all.Go(func() {
				r, stream, next := rand.New(rand.NewPCG(n, 1)), new(Stream), 0
				needs := make([][]int64, batches)
				for k := range needs {
					for _, i := range r.Perm(256)[:perBatch] {
						needs[k] = append(needs[k], int64(i))
					}
				}
				for k, list := range needs {
					stream.Advance(uint64(k))
					for ; next < batches; next++ {
						if slices.ContainsFunc(needs[next], func(i int64) bool { return !o.prefetch(i, Demand{stream, uint64(next)}) }) {
							break
						}
					}
					slices.Sort(list)
					for _, i := range list {
						o.prefetch(i, Demand{})
					}
					for _, i := range list {
						if err := s.compareBlock(o, i); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		testwait.End(t, "the readers", all.Wait)
		if n := s.fetched.Load(); n > 3*batches*perBatch {
			t.Errorf("with memory for %d blocks, %d were fetched for requests that need %d", fit, n, 3*batches*perBatch)
		}
	}
}
