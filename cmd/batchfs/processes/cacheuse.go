package processes

import (
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cache/blocks"
	"batchfs/fs/state"
)

// recordCacheUse updates the gauges of the block cache forever, if there is a cache directory. It
// spends at most 1% of its time listing blocks.
func recordCacheUse(o blocks.Options, to *state.Gauges) {
	for o.Dir != "" {
		began := time.Now()
		objects, sets, err := blocks.Usage(o)
		if err == nil {
			var used, needed, stored int64
			for _, object := range objects {
				used += object.StoredBytes
			}
			for _, s := range sets {
				if s.Live {
					needed, stored = needed+s.Needed, stored+s.Stored
				}
			}
			to.CacheUsed.Store(used)
			to.CacheNeeded.Store(needed)
			to.CacheStored.Store(stored)
			to.CacheLimit.Store(o.Limit)
		}
		var disk unix.Statfs_t
		if unix.Statfs(o.Dir, &disk) == nil {
			to.CacheFree.Store(int64(disk.Bavail) * disk.Bsize)
			to.CacheDisk.Store(int64(disk.Blocks) * disk.Bsize)
		}
		time.Sleep(max(5*time.Second, 100*time.Since(began)))
	}
}
