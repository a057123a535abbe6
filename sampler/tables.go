package sampler

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Tables keep in memory where rows begin: how many windows there are up to each file, and groups of rows of documents. Beyond a limit
// they drop what was not used lately; it is made again when it is wanted. Tables are safe for concurrent use.
type Tables struct {
	mu    sync.Mutex // guards all below; no other lock is taken under it
	limit int64      // bytes
	bytes int64      // of all in uses
	uses  []*use     // the clock algorithm's: the first is dropped next, unless it was used since it was last the first
}

// NewTables returns tables of up to limit bytes. What was made last stays, whatever its size.
func NewTables(limit int64) *Tables { return &Tables{limit: limit} }

// defaultTables is the limit in bytes of the tables of a sequence that brings none.
const defaultTables = 64 << 20

// Bytes is how much memory the tables take: 8 bytes for each file and block size in use, and some 32 bytes for each document that rows
// were made of lately.
func (t *Tables) Bytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

type use struct {
	lately atomic.Bool
	bytes  int64
	shelf  any
	drop   func() // makes the value garbage
}

func (t *Tables) keep(u *use) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += u.bytes
	for t.bytes > t.limit && len(t.uses) > 0 {
		first := t.uses[0]
		t.uses = t.uses[1:]
		if first.lately.Swap(false) {
			t.uses = append(t.uses, first)
			continue
		}
		first.drop()
		t.bytes -= first.bytes
	}
	t.uses = append(t.uses, u)
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
	if !v.lately.Load() { // mostly it is: a store would take the cache line from other readers
		v.lately.Store(true)
	}
	return v.value, true
}

// put keeps value i. Two readers may have made it at once, because nothing is locked while it is made: one of them keeps it.
func (s *shelf[T]) put(i, bytes int64, value T) {
	slot := &s.slots[i]
	v := &shelved[T]{value: value, use: use{bytes: bytes, shelf: s, drop: func() { slot.Store(nil) }}}
	if slot.CompareAndSwap(nil, v) {
		s.tables.keep(&v.use)
	}
}

// clear forgets all values. No reader may need them any more.
func (s *shelf[T]) clear() {
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	t.uses = slices.DeleteFunc(t.uses, func(u *use) bool {
		if u.shelf != s {
			return false
		}
		t.bytes -= u.bytes
		return true
	})
}
