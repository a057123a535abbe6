package sampler

import (
	"maps"
	"sync"
	"sync/atomic"
	"weak"
)

// Tables cache where rows begin: the number of windows up to each file, how groups of documents are
// laid into rows, and the patterns of mixtures. Beyond a limit, they evict the oldest entry, which
// is computed again when it is needed. Tables are safe for concurrent use.
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

// Bytes returns the size of the tables: 8 bytes for each file and block size, about 32 bytes
// for each document of a cached group, and 12 bytes for each row of a mixture's period.
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

// A weakCache holds values that are in use. The others are garbage collected. A weakCache is safe
// for concurrent use.
type weakCache[K comparable, V any] struct {
	mu     sync.Mutex // guards cached; held while a value is built, to build each once
	cached map[K]weak.Pointer[V]
}

func (c *weakCache[K, V]) get(key K, build func() (*V, error)) (*V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.cached[key].Value(); v != nil {
		return v, nil
	}
	v, err := build()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(c.cached, func(_ K, old weak.Pointer[V]) bool { return old.Value() == nil })
	if c.cached == nil {
		c.cached = map[K]weak.Pointer[V]{}
	}
	c.cached[key] = weak.Make(v)
	return v, nil
}
