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
			free, size := diskSpace(&disk)
			to.CacheFree.Store(free)
			to.CacheDisk.Store(size)
		}
		time.Sleep(max(5*time.Second, 100*time.Since(began)))
	}
}

// diskSpace returns the free space and the size of a file system, in bytes.
func diskSpace(disk *unix.Statfs_t) (free, size int64) {
	// Frsize is the unit of both numbers. On some network file systems, it is not Bsize.
	return int64(disk.Bavail) * disk.Frsize, int64(disk.Blocks) * disk.Frsize
}
