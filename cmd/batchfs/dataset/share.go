package dataset

import (
	"context"
	"fmt"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/sampler"
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

// Fill fetches the share of d in the order in which it will be read: see [cache.Fetch].
func (d *Dataset) Fill(ctx context.Context, share *cache.Share, progress func(n int64)) error {
	ranks, settings := []*sampler.Sequence{d.Sequence}, d.Sequence.Settings
	if settings.ShuffleBlock > 0 {
		ranks = nil
		first := settings.Rank / settings.LocalWorld * settings.LocalWorld
		for settings.Rank = first; settings.Rank < first+settings.LocalWorld; settings.Rank++ {
			q, err := d.Sequence.With(settings)
			if err != nil {
				return err
			}
			ranks = append(ranks, q)
		}
	}
	err := cache.Fetch(ctx, share, d.stretches(), func(visit func(*cache.Array, array.Window) bool) {
		for k := range uint64(d.Sequence.BatchesPerEpoch()) {
			for _, q := range ranks {
				if !q.Windows(d.Split.Start+k, func(source, column int, w array.Window) bool { return visit(d.sources[source][column], w) }) {
					return
				}
			}
		}
	}, progress)
	if err != nil {
		return fmt.Errorf("splits.%s: %w", d.Split.Split, err)
	}
	return nil
}
