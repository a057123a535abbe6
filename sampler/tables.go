package sampler

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Tables keep in memory what says where rows begin: how many windows there are up to each file, and groups of rows of documents. Beyond
// a limit they drop what was used longest ago. It is made again when it is wanted, and a read that uses it keeps it until then. Tables
// are safe for concurrent use.
type Tables struct {
	clock atomic.Int64 // counts what was kept

	mu    sync.Mutex // guards all below; no other lock is taken under it
	limit int64      // bytes
	bytes int64      // of all in uses
	uses  map[*use]struct{}
}

// NewTables returns tables of up to limit bytes. What was made last stays, whatever its size.
func NewTables(limit int64) *Tables { return &Tables{limit: limit, uses: map[*use]struct{}{}} }

// defaultTables is the limit in bytes of the tables of a sequence that brings none.
const defaultTables = 64 << 20

// Bytes is how much memory the tables take: 8 bytes for each file and block size in use, and some 32 bytes for each document that rows
// were made of lately.
func (t *Tables) Bytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

// A use says when a value was used last.
type use struct {
	at    atomic.Int64 // what the clock said then
	bytes int64        // of the value
	drop  func()       // makes it garbage
}

func (t *Tables) touch(u *use) {
	if now := t.clock.Load(); u.at.Load() != now { // mostly equal: a store would take the cache line from other readers
		u.at.Store(now)
	}
}

func (t *Tables) keep(u *use) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u.at.Store(t.clock.Add(1))
	if t.bytes += u.bytes; t.bytes > t.limit {
		t.dropOldest()
	}
	t.uses[u] = struct{}{}
}

// dropOldest drops a quarter more than it must, so that it does not sort all uses each time. The caller holds mu.
func (t *Tables) dropOldest() {
	type dated struct {
		*use
		at int64 // a copy, because readers change the use's own
	}
	var oldest []dated
	for u := range t.uses {
		oldest = append(oldest, dated{u, u.at.Load()})
	}
	slices.SortFunc(oldest, func(a, b dated) int { return cmp.Compare(a.at, b.at) })
	for _, u := range oldest {
		if t.bytes <= t.limit-t.limit/4 {
			return
		}
		t.remove(u.use)
	}
}

// remove drops a value that is kept. The caller holds mu.
func (t *Tables) remove(u *use) {
	u.drop()
	t.bytes -= u.bytes
	delete(t.uses, u)
}

// A shelf has values by number. Tables may drop any of them.
type shelf[T any] struct {
	tables *Tables
	slots  []atomic.Pointer[shelved[T]]
}

type shelved[T any] struct {
	value T
	use
}

func newShelf[T any](tables *Tables, n int) *shelf[T] {
	return &shelf[T]{tables, make([]atomic.Pointer[shelved[T]], n)}
}

// get returns value i if it is in memory.
func (s *shelf[T]) get(i int64) (value T, ok bool) {
	v := s.slots[i].Load()
	if v == nil {
		return value, false
	}
	s.tables.touch(&v.use)
	return v.value, true
}

// put keeps value i. Two readers may have made it at once, because nothing is locked while it is made: one of them keeps it.
func (s *shelf[T]) put(i, bytes int64, value T) {
	slot, v := &s.slots[i], &shelved[T]{value: value}
	v.bytes, v.drop = bytes, func() { slot.Store(nil) }
	if slot.CompareAndSwap(nil, v) {
		s.tables.keep(&v.use)
	}
}

// clear drops all values, which no reader needs any more.
func (s *shelf[T]) clear() {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	for i := range s.slots {
		if v := s.slots[i].Load(); v != nil {
			if _, kept := s.tables.uses[&v.use]; kept {
				s.tables.remove(&v.use)
			}
		}
	}
}
