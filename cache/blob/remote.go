package blob

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"batchfs/cache/blocks"
	"batchfs/cache/store"
)

// A Remote opens objects and caches them. Its blobs share connections and memory. It sends requests
// only to open, list, read or revalidate objects. It is safe for concurrent use.
type Remote struct {
	Store  store.Options
	Blocks blocks.Options
	Log    *slog.Logger // log of failures of the cache directory, and of Note; nil: slog.Default

	noted sync.Map // URLs with a note

	mu      sync.Mutex // guards the fields below
	clients map[string]*store.Client
	cache   *blocks.Cache
}

func (r *Remote) log() *slog.Logger { return cmp.Or(r.Log, slog.Default()) }

// client returns the client for a scheme. It also creates the cache.
func (r *Remote) client(scheme string) (_ *store.Client, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache == nil {
		r.cache, r.clients = blocks.New(r.Blocks, r.log()), map[string]*store.Client{}
	}
	if r.clients[scheme] == nil {
		r.clients[scheme], err = store.New(scheme, r.Store)
	}
	return r.clients[scheme], err
}

// Flush waits until the cache blocks in memory are written to the directory, and frees their
// memory.
func (r *Remote) Flush() {
	r.mu.Lock()
	cache := r.cache
	r.mu.Unlock()
	if cache != nil {
		cache.Flush()
	}
}

// MemoryBytes returns the size of the cache blocks in memory, or -1 if the Remote is unused.
func (r *Remote) MemoryBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache == nil {
		return -1
	}
	return r.cache.MemoryBytes()
}

// IsURL reports whether name is a URL, of an object or of something that batchfs does not read.
func IsURL(name string) bool { return strings.Contains(name, "://") }

// IsRemote reports whether name is the URL of an object, not the path of a file.
func IsRemote(name string) bool {
	_, ok := store.Parse(name)
	return ok
}

// resolve returns the sorted names of the objects that a pattern matches, and their sizes in bytes
// if it is a glob. It leaves out the empty objects with which tools mark folders.
func (r *Remote) resolve(pattern string) (names []string, sizes map[string]int64, err error) {
	o, _ := store.Parse(pattern)
	switch {
	case o.Bucket == "":
		return nil, nil, fmt.Errorf("must name a bucket, as in %s://bucket/train.bin (got %q)", o.Scheme, pattern)
	case o.Key == "", strings.HasSuffix(o.Key, "/"):
		return nil, nil, fmt.Errorf("must name objects, as in %s/*.bin (got %q)", strings.TrimSuffix(pattern, "/"), pattern)
	}
	prefix := strings.IndexAny(o.Key, `*?[\`)
	if prefix < 0 {
		return []string{pattern}, nil, nil
	}
	if _, err := path.Match(o.Key, ""); err != nil {
		return nil, nil, fmt.Errorf("must be a URL or a glob: %w (got %q)", err, pattern)
	}
	client, err := r.client(o.Scheme)
	if err != nil {
		return nil, nil, err
	}
	all, err := client.List(context.Background(), o.Scheme, o.Bucket, o.Key[:prefix])
	if err != nil {
		return nil, nil, err
	}
	sizes = map[string]int64{}
	for _, found := range all {
		if ok, _ := path.Match(o.Key, found.Key); ok && !isHidden(o.Key, found.Key) && (found.Size > 0 || !strings.HasSuffix(found.Key, "/")) {
			sizes[found.Name()] = found.Size
		}
	}
	if len(sizes) == 0 {
		return nil, nil, fmt.Errorf("must name objects that exist (got %q, which matches none)", pattern)
	}
	return slices.Sorted(maps.Keys(sizes)), sizes, nil
}
