package blob

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"batchfs/cache/blocks"
	"batchfs/cache/store"
)

// A Remote says from which store objects are read, and where their blocks are kept. Remotes that are equal share what they keep.
type Remote struct {
	Store  store.Options
	Blocks blocks.Options
}

// A remote is a Remote in use.
type remote struct {
	Remote
	blocks *blocks.Cache

	mu      sync.Mutex
	clients map[string]*store.Client // by scheme; guarded by mu, as objects
	objects []weak.Pointer[Object]
}

var remotes struct {
	sync.Mutex
	all map[Remote]*remote
	log *slog.Logger
}

// SetRemoteLog says where it is logged what is wrong with a directory of blocks. It is called before anything is opened.
func SetRemoteLog(log *slog.Logger) {
	remotes.Lock()
	defer remotes.Unlock()
	remotes.log = log
}

func remoteLog() *slog.Logger {
	remotes.Lock()
	defer remotes.Unlock()
	if remotes.log == nil {
		return slog.Default()
	}
	return remotes.log
}

// open returns what this process has of r.
func (r Remote) open() *remote {
	remotes.Lock()
	defer remotes.Unlock()
	opened := remotes.all[r]
	if opened == nil {
		opened = &remote{Remote: r, blocks: blocks.New(r.Blocks, remoteLog), clients: map[string]*store.Client{}}
		if remotes.all == nil {
			remotes.all = map[Remote]*remote{}
		}
		remotes.all[r] = opened
		if r.Blocks.Dir != "" {
			go opened.closeRemoved()
		}
	}
	return opened
}

// closeRemoved closes blocks soon after they were removed from the directory, whose space they take until then.
func (r *remote) closeRemoved() {
	for range time.Tick(closeEvery) {
		r.mu.Lock()
		r.objects = slices.DeleteFunc(r.objects, func(p weak.Pointer[Object]) bool { return p.Value() == nil })
		objects := slices.Clone(r.objects)
		r.mu.Unlock()
		some := false
		for _, p := range objects {
			if o := p.Value(); o != nil && o.closeRemoved() {
				some = true
			}
		}
		if some {
			runtime.GC() // which closes them
		}
	}
}

const closeEvery = 10 * time.Second

func (r *remote) client(scheme string) (*store.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clients[scheme] == nil {
		client, err := store.New(scheme, r.Store)
		if err != nil {
			return nil, err
		}
		r.clients[scheme] = client
	}
	return r.clients[scheme], nil
}

// opened are all remotes in use.
func openedRemotes() (all []*remote) {
	remotes.Lock()
	defer remotes.Unlock()
	for _, r := range remotes.all {
		all = append(all, r)
	}
	return all
}

// Flush returns when what was fetched of objects lies in their directory, or cannot, and lets go of the memory that it took.
func Flush() {
	for _, r := range openedRemotes() {
		r.blocks.Flush()
	}
}

// RemoteUse is what this process has read of objects.
type RemoteUse struct {
	Requests, Bytes int64 // sent to stores, and fetched from them
	Hits, Waits     int64 // reads of blocks that were there, and of blocks that were not
	Waited          time.Duration
	Unkept          int64 // blocks that did not go to the directory
	Memory          int64 // bytes
}

// RemoteUseNow returns what this process has read so far. ok is false if it reads no objects.
func RemoteUseNow() (u RemoteUse, ok bool) {
	for _, r := range openedRemotes() {
		ok = true
		c := &r.blocks.Counts
		u.Hits, u.Waits, u.Waited, u.Unkept = u.Hits+c.Hits.Load(), u.Waits+c.Waits.Load(), u.Waited+time.Duration(c.Waited.Load()), u.Unkept+c.Full.Load()
		u.Memory += r.blocks.MemoryBytes()
		r.mu.Lock()
		for _, client := range r.clients {
			u.Requests, u.Bytes = u.Requests+client.Requests.Load(), u.Bytes+client.Bytes.Load()
		}
		r.mu.Unlock()
	}
	return u, ok
}

// IsRemote reports whether a name is that of an object, not the path of a file.
func IsRemote(name string) bool {
	_, ok := store.Parse(name)
	return ok
}

// resolve returns the names of the objects that a pattern names. Those of a glob are in alphabetical order.
func (r *remote) resolve(pattern string) (names []string, err error) {
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
	client, err := r.client(o.Scheme)
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
