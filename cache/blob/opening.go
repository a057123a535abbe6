package blob

import (
	"context"
	"errors"
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
	return Identity{Size: at.Size, ETag: at.ETag}, &objectContent{client: client, at: at, parts: map[int64][]byte{}}, nil
}

// An objectContent is an object that is being opened. Its first bytes are read once, because formats look at them again and again, and are
// kept, as are samples.
type objectContent struct {
	client *store.Client
	at     store.Object
	head   []byte
	parts  map[int64][]byte // of fetch, by their first byte
}

const headBytes = 64 << 10

func (c *objectContent) Close() error { return nil }

func (c *objectContent) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > c.at.Size {
		return 0, syscall.EINVAL
	}
	if off+int64(len(b)) <= headBytes {
		if c.head == nil {
			head := make([]byte, min(headBytes, c.at.Size))
			if err := c.read(head, 0); err != nil {
				return 0, err
			}
			c.head = head
		}
		return copy(b, c.head[off:]), nil
	}
	if part := c.parts[off]; len(part) >= len(b) {
		return copy(b, part), nil
	}
	return len(b), c.read(b, off)
}

func (c *objectContent) read(b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	return c.client.ReadRange(context.Background(), c.at, off, b)
}

// fetch reads several parts of so many bytes at once, which ReadAt returns then.
func (c *objectContent) fetch(offs []int64, length int64) error {
	parts, errs := make([][]byte, len(offs)), make([]error, len(offs))
	var all sync.WaitGroup
	for i, off := range offs {
		if off+length <= headBytes {
			continue
		}
		all.Go(func() {
			parts[i] = make([]byte, length)
			errs[i] = c.read(parts[i], off)
		})
	}
	all.Wait()
	for i, off := range offs {
		c.parts[off] = parts[i]
	}
	return errors.Join(errs...)
}
