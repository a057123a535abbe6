package blob

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"batchfs/cache/blocks"
	"batchfs/cache/store"
)

// A Remote says from which store objects are read, and where their blocks are kept. All that is opened of one Remote shares its connections
// and its memory for blocks. It touches nothing before the first object is opened, and is safe for concurrent use.
type Remote struct {
	Store  store.Options
	Blocks blocks.Options
	Log    *slog.Logger // of a directory of blocks that fails; nil: slog.Default

	mu      sync.Mutex               // guards the fields below
	clients map[string]*store.Client // by scheme
	cache   *blocks.Cache
}

func (r *Remote) open(scheme string) (*store.Client, *blocks.Cache, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache == nil {
		r.Store.Counts = cmp.Or(r.Store.Counts, new(store.Counts))
		r.Blocks.Counts, r.Blocks.Writes = cmp.Or(r.Blocks.Counts, new(blocks.Counts)), cmp.Or(r.Blocks.Writes, new(blocks.Writes))
		r.cache, r.clients = blocks.New(r.Blocks, cmp.Or(r.Log, slog.Default())), map[string]*store.Client{}
	}
	if r.clients[scheme] == nil {
		client, err := store.New(scheme, r.Store)
		if err != nil {
			return nil, nil, err
		}
		r.clients[scheme] = client
	}
	return r.clients[scheme], r.cache, nil
}

// Flush waits until the blocks in memory were written to the directory, and frees that memory.
func (r *Remote) Flush() {
	r.mu.Lock()
	cache := r.cache
	r.mu.Unlock()
	if cache != nil {
		cache.Flush()
	}
}

// RemoteUse counts reads of objects by all processes that share the counters in Store and Blocks.
// Memory covers this process alone.
type RemoteUse struct {
	Requests, Bytes int64         // requests sent to stores, and bytes fetched from them
	Hits, Waits     int64         // reads of cached blocks, and of blocks that had to be fetched
	Waited          time.Duration // total time spent waiting for fetches
	Unkept          int64         // fetched blocks for which the directory had no room
	Present         int64         // fetched blocks that another process had written first
	Failed, Slow    int64         // blocks not written because the directory failed, or was slow
	Memory          int64         // size of the blocks in memory, in bytes
}

// Use returns the current counts. ok is false if this process has opened no object.
func (r *Remote) Use() (u RemoteUse, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache == nil {
		return u, false
	}
	c, s := r.Blocks.Counts, r.Store.Counts
	u.Hits, u.Waits, u.Waited, u.Unkept = c.Hits.Load(), c.Waits.Load(), time.Duration(c.Waited.Load()), c.Full.Load()
	w := r.Blocks.Writes
	u.Present, u.Failed, u.Slow = w.Present.Load(), w.Failed.Load(), w.Slow.Load()
	u.Requests, u.Bytes = s.Requests.Load(), s.Bytes.Load()
	u.Memory = r.cache.MemoryBytes()
	return u, true
}

// IsRemote reports whether a name means an object, not the path of a file.
func IsRemote(name string) bool {
	_, ok := store.Parse(name)
	return ok
}

// resolve returns the names of the objects that a pattern names. Those of a glob are in alphabetical order.
func (r *Remote) resolve(pattern string) (names []string, err error) {
	o, _ := store.Parse(pattern)
	switch {
	case o.Bucket == "":
		return nil, fmt.Errorf("must name a bucket, as in %s://bucket/train.bin (got %q)", o.Scheme, pattern)
	case o.Key == "", strings.HasSuffix(o.Key, "/"):
		return nil, fmt.Errorf("must name objects, as in %s/*.bin (got %q)", strings.TrimSuffix(pattern, "/"), pattern)
	}
	prefix := strings.IndexAny(o.Key, `*?[\`)
	if prefix < 0 {
		return []string{pattern}, nil
	}
	if _, err := path.Match(o.Key, ""); err != nil {
		return nil, fmt.Errorf("must be a URL or a glob: %w (got %q)", err, pattern)
	}
	client, _, err := r.open(o.Scheme)
	if err != nil {
		return nil, err
	}
	keys, err := client.List(context.Background(), o.Scheme, o.Bucket, o.Key[:prefix])
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if ok, _ := path.Match(o.Key, key); ok {
			names = append(names, store.Object{Scheme: o.Scheme, Bucket: o.Bucket, Key: key}.Name())
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("must name objects that exist (got %q, which matches none)", pattern)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
