package dataset

import (
	"context"
	"fmt"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/sampler"
)

// WorkingSet returns the cache blocks that one epoch reads in all arrays, for all ranks that share
// the epoch, or nil if no blocks are cached. name identifies the reader.
func (d *Dataset) WorkingSet(name string) *cache.WorkingSet {
	var ranges []cache.ArrayRange
	for i, arrays := range d.sources {
		from, to := d.Sequence.NeededElements(i)
		if from == to {
			continue
		}
		for _, array := range arrays {
			ranges = append(ranges, cache.ArrayRange{Array: array, From: from, To: to})
		}
	}
	return cache.NewWorkingSet(name, ranges)
}

// Fill fetches a working set of d in the order in which it will be read. It calls progress with the
// number of bytes fetched; see [cache.WorkingSet.Fetch].
func (d *Dataset) Fill(ctx context.Context, set *cache.WorkingSet, progress func(n int64)) error {
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
	err := set.Fetch(ctx, func(visit func(*cache.Array, array.Window) bool) {
		for k := range uint64(d.Sequence.BatchesPerEpoch()) {
			for _, q := range ranks {
				for w, err := range q.Windows(d.Split.Start + k) {
					if err != nil || !visit(d.sources[w.Source][w.Column], w.Window) {
						return
					}
				}
			}
		}
	}, progress)
	if err != nil {
		return fmt.Errorf("splits.%s: %w", d.Split.Name, err)
	}
	return nil
}
