package blob

import (
	"context"
	"sync"
	"syscall"

	"batchfs/cache/localfile"
	"batchfs/cache/store"
)

func (r *Remote) openObject(name string) (stamp localfile.Stamp, _ Content, err error) {
	o, _ := store.Parse(name)
	client, err := r.client(o.Scheme)
	if err != nil {
		return stamp, nil, err
	}
	o, modified, err := client.Stat(context.Background(), o)
	if err != nil {
		return stamp, nil, err
	}
	if err := r.cache.Check(); err != nil {
		return stamp, nil, err
	}
	return localfile.Stamp{Size: o.Size, Sec: modified.Unix(), ETag: o.ETag}, newObjectContent(client, o), nil
}

// An objectContent is the content of an object that is being opened or sampled. It bypasses the
// cache.
type objectContent struct {
	client *store.Client
	object store.Object
	// head returns the first headBytes bytes, and fetches them only once, because formats read them
	// repeatedly.
	head func() ([]byte, error)
}

const headBytes = 64 << 10

func newObjectContent(client *store.Client, o store.Object) *objectContent {
	c := &objectContent{client: client, object: o}
	c.head = sync.OnceValues(func() ([]byte, error) {
		head := make([]byte, min(headBytes, o.Size))
		return head, c.fetch(head, 0)
	})
	return c
}

func (c *objectContent) Close() error { return nil }

func (c *objectContent) ReadAt(b []byte, off int64) (int, error) {
	end := off + int64(len(b))
	switch {
	case end > c.object.Size:
		return 0, syscall.EINVAL
	case end > headBytes:
		return len(b), c.fetch(b, off)
	}
	head, err := c.head()
	if err != nil {
		return 0, err
	}
	return copy(b, head[off:]), nil
}

func (c *objectContent) fetch(b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	return c.client.ReadRange(context.Background(), c.object, off, b)
}
