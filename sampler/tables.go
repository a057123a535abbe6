package sampler

import (
	"sync"
	"sync/atomic"
)

// Tables cache where rows begin: the number of windows up to each file, and how groups of documents
// are laid into rows. Beyond a limit, they evict the oldest entry, which is computed again when it
// is needed. Tables are safe for concurrent use.
type Tables struct {
	mu     sync.Mutex // guards the fields below; no other lock is taken under it
	limit  int64      // bytes
	bytes  int64      // size of all cached tables
	cached []table    // oldest first
}

type table struct {
	bytes int64
	drop  func() // clears the pointer to the table
}

// tableOverhead is about the size of a table besides its values, in bytes.
const tableOverhead = 128

// NewTables returns tables that cache up to limit bytes. The newest entry stays, whatever its size.
func NewTables(limit int64) *Tables { return &Tables{limit: limit} }

// defaultTableBytes is the limit for a Source without Tables.
const defaultTableBytes = 64 << 20

// Bytes returns the size of the tables: 8 bytes for each file and block size, and about 32 bytes
// for each document of a cached group.
func (t *Tables) Bytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

// cacheTable stores a value of the given size in p, and clears p when t evicts the value. It keeps
// a value that another goroutine has stored meanwhile: values are computed without a lock.
func cacheTable[T any](t *Tables, p *atomic.Pointer[T], value *T, bytes int64) {
	if !p.CompareAndSwap(nil, value) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += bytes + tableOverhead
	for ; t.bytes > t.limit && len(t.cached) > 0; t.cached = t.cached[1:] {
		t.cached[0].drop()
		t.bytes -= t.cached[0].bytes
	}
	t.cached = append(t.cached, table{bytes + tableOverhead, func() { p.Store(nil) }})
}
