package sampler

import (
	"sync"
	"sync/atomic"
)

// Tables keep in memory where rows begin: how many windows there are up to each file, and groups of rows of documents. Beyond a limit
// they drop what was made first; it is made again when it is wanted. Tables are safe for concurrent use.
type Tables struct {
	mu     sync.Mutex // guards all below; no other lock is taken under it
	limit  int64      // bytes
	bytes  int64      // of all made
	cached []table    // in the order in which they were made
}

type table struct {
	bytes int64
	drop  func() // makes the table garbage
}

// tableBytes is about what a table takes besides its values.
const tableBytes = 128

// NewTables returns tables of up to limit bytes. What was made last stays, whatever its size.
func NewTables(limit int64) *Tables { return &Tables{limit: limit} }

// defaultTables is the limit in bytes of the tables of a sequence that brings none.
const defaultTables = 64 << 20

// Bytes is how much memory the tables take: 8 bytes for each file and block size, and some 32 bytes for each document that rows were made of lately.
func (t *Tables) Bytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

// cacheTable puts a value of so many bytes into a slot, which is emptied when t drops the value. Two readers may have made a value at once, because
// nothing is locked while it is made: one of them keeps it.
func cacheTable[T any](t *Tables, slot *atomic.Pointer[T], value *T, bytes int64) {
	if !slot.CompareAndSwap(nil, value) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += bytes + tableBytes
	for ; t.bytes > t.limit && len(t.cached) > 0; t.cached = t.cached[1:] {
		t.cached[0].drop()
		t.bytes -= t.cached[0].bytes
	}
	t.cached = append(t.cached, table{bytes + tableBytes, func() { slot.Store(nil) }})
}
