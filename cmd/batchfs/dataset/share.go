package dataset

import (
	"context"
	"fmt"

	"batchfs/cache"
)

// stretches are what an epoch needs of all arrays.
func (d *Dataset) stretches() (list []cache.Stretch) {
	for i, arrays := range d.sources {
		from, to := d.Sequence.Needed(i)
		for _, array := range arrays {
			list = append(list, cache.Stretch{Array: array, From: from, To: to})
		}
	}
	return list
}

// Share is what an epoch reads of objects, by all ranks that go through it together, or nil where nothing is kept. name says who reads it.
func (d *Dataset) Share(name string) *cache.Share { return cache.NewShare(name, d.stretches()) }

// Fill fetches the share of d: see [cache.Fetch].
func (d *Dataset) Fill(ctx context.Context, share *cache.Share, progress func(n int64)) error {
	if err := cache.Fetch(ctx, share, d.stretches(), progress); err != nil {
		return fmt.Errorf("splits.%s: %w", d.Split.Split, err)
	}
	return nil
}
