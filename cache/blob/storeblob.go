package blob

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"batchfs/cache/blocks"
	"batchfs/cache/localfile"
	"batchfs/cache/store"
	"batchfs/internal/clock"
)

// A StoreBlob is a Blob in a store. It is safe for concurrent use.
type StoreBlob struct {
	name   string
	stamp  localfile.Stamp
	sample localfile.Sample
	client *store.Client
	cached *blocks.CachedObject

	// changed is nil unless the store is known to have another object.
	changed          atomic.Pointer[localfile.ChangedError]
	lastRevalidation atomic.Int64 // clock.Now at the last revalidation by Check
}

func (r *Remote) newStoreBlob(name string, stamp localfile.Stamp, sample localfile.Sample, dropPageCache bool) (*StoreBlob, error) {
	o, _ := store.Parse(name)
	o.ETag, o.Size = stamp.ETag, stamp.Size
	client, err := r.client(o.Scheme)
	if err != nil {
		return nil, err
	}
	cached := r.cache.Object(client.Endpoint, o, client.ReadRange, dropPageCache)
	return &StoreBlob{name: name, stamp: stamp, sample: sample, client: client, cached: cached}, nil
}

func (b *StoreBlob) Path() string { return b.name }

func (b *StoreBlob) Stamp() localfile.Stamp { return b.stamp }

func (b *StoreBlob) Sample() localfile.Sample { return b.sample }

// Check sends no request, because every fetch compares the ETag. The exception is an object that is
// known to have been replaced: Check revalidates it, about once a second.
func (b *StoreBlob) Check() error {
	changed := b.changed.Load()
	if changed == nil {
		return nil
	}
	now, last := clock.Now(), b.lastRevalidation.Load()
	if now-last > int64(time.Second) && b.lastRevalidation.CompareAndSwap(last, now) {
		go b.Revalidate()
	}
	return changed
}

// Revalidate asks the store whether it still has the object, and records the answer for Check and
// Read.
func (b *StoreBlob) Revalidate() {
	found, _, err := b.client.Stat(context.Background(), b.cached.Object)
	switch {
	case err != nil:
	case found == b.cached.Object:
		b.changed.Store(nil)
	default:
		b.changed.CompareAndSwap(nil, &localfile.ChangedError{Path: b.name, How: "the store has another object there"})
	}
}

func (b *StoreBlob) Release() { b.cached.Release() }

// Range returns the bytes [from, to) of the object.
func (b *StoreBlob) Range(from, to int64) blocks.ObjectRange {
	return blocks.ObjectRange{Object: b.cached, From: from, To: to}
}

func (b *StoreBlob) Read(ranges []localfile.Range, visit func(int, []byte) error) error {
	if changed := b.changed.Load(); changed != nil {
		return changed
	}
	return b.recordChange(b.cached.Read(ranges, visit))
}

func (b *StoreBlob) ReadSample(blocks int64, visit func(off int64, block []byte)) (localfile.Sample, error) {
	s, err := localfile.NewSample(newObjectContent(b.client, b.cached.Object), b.stamp.Size, blocks, visit)
	return s, b.recordChange(err)
}

// recordChange returns the error of a request to the store, as a ChangedError if the store has
// another object, which it records for Check and Read.
func (b *StoreBlob) recordChange(err error) error {
	if !errors.Is(err, store.ErrChanged) {
		return err
	}
	changed := &localfile.ChangedError{Path: b.name, How: strings.TrimPrefix(err.Error(), b.name+": ")}
	b.changed.Store(changed)
	return changed
}
