package units

import (
	"bytes"
	"context"
	"io"
	"os"
	"path"
	"strings"

	"batchfs/cache/store"
)

// A Bucket is an Output in a store: the objects whose keys begin with that of At.
type Bucket struct {
	Client *store.Client
	At     store.Object // the key ends with a slash, or is empty
}

func (b *Bucket) object(name string) store.Object {
	o := b.At
	o.Key += name
	return o
}

// Make implements [Output].
func (b *Bucket) Make(context.Context) error { return nil }

// List implements [Output].
func (b *Bucket) List(ctx context.Context, _ bool) (map[string]State, error) {
	all, err := b.Client.List(ctx, b.At.Scheme, b.At.Bucket, b.At.Key)
	files := map[string]State{}
	for _, o := range all {
		name := strings.TrimPrefix(o.Key, b.At.Key)
		if dir := path.Dir(name); dir == "." || dir == Dir {
			files[name] = ObjectState(o)
		}
	}
	return files, err
}

// ObjectState returns the state of an object.
func ObjectState(o store.Object) State { return State{Size: o.Size, ETag: o.ETag} }

// Stat implements [Output].
func (b *Bucket) Stat(ctx context.Context, name string) (State, error) {
	o, _, err := b.Client.Stat(ctx, b.object(name))
	return ObjectState(o), err
}

// Open implements [Output].
func (b *Bucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	o, _, err := b.Client.Stat(ctx, b.object(name))
	if err != nil {
		return nil, err
	}
	return b.Client.Open(ctx, o), nil
}

// Scratch implements [Output].
func (b *Bucket) Scratch(name string) (string, error) {
	return os.MkdirTemp("", "batchfs-"+name+"-")
}

// Publish implements [Output].
func (b *Bucket) Publish(ctx context.Context, from, name string) (State, error) {
	f, err := os.Open(from)
	if err != nil {
		return State{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return State{}, err
	}
	o, err := b.Client.Put(ctx, b.object(name), f, info.Size())
	return ObjectState(o), err
}

// Write implements [Output].
func (b *Bucket) Write(ctx context.Context, name string, text []byte) error {
	_, err := b.Client.Put(ctx, b.object(name), bytes.NewReader(text), int64(len(text)))
	return err
}

// Sync implements [Output].
func (b *Bucket) Sync(context.Context) error { return nil }

// Clean implements [Output].
func (b *Bucket) Clean(ctx context.Context, ours func(name string) bool) error {
	return b.Client.AbortUploads(ctx, b.At.Scheme, b.At.Bucket, b.At.Key, func(key string) bool {
		return ours(strings.TrimPrefix(key, b.At.Key))
	})
}

// Path implements [Output].
func (b *Bucket) Path(name string) string { return strings.TrimSuffix(b.object(name).Name(), "/") }
