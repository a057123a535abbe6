package blob

import (
	"context"
	"sync"
	"syscall"

	"batchfs/cache/store"
)

// openObject looks at the object with a name.
func (r *Remote) openObject(name string) (id Identity, _ Content, err error) {
	at, _ := store.Parse(name)
	client, cache, err := r.open(at.Scheme)
	if err != nil {
		return id, nil, err
	}
	if at, err = client.Stat(context.Background(), at); err != nil {
		return id, nil, err
	}
	if err := cache.Check(); err != nil {
		return id, nil, err
	}
	c := &objectContent{client: client, at: at}
	c.head = sync.OnceValues(func() ([]byte, error) {
		head := make([]byte, min(headBytes, at.Size))
		return head, c.read(head, 0)
	})
	return Identity{Size: at.Size, ETag: at.ETag}, c, nil
}

// An objectContent is an object that is being opened.
type objectContent struct {
	client *store.Client
	at     store.Object
	head   func() ([]byte, error) // headBytes, which are kept: formats read them again and again
}

const headBytes = 64 << 10

func (c *objectContent) Close() error { return nil }

func (c *objectContent) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > c.at.Size {
		return 0, syscall.EINVAL
	}
	if off+int64(len(b)) > headBytes {
		return len(b), c.read(b, off)
	}
	head, err := c.head()
	if err != nil {
		return 0, err
	}
	return copy(b, head[off:]), nil
}

func (c *objectContent) read(b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	return c.client.ReadRange(context.Background(), c.at, off, b)
}
