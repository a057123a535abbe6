package dataset

import (
	"log/slog"

	"batchfs/cache/blob"
	"batchfs/cache/blocks"
	"batchfs/cache/counts"
	"batchfs/cmd/batchfs/config"
	"batchfs/fs/state"
	"batchfs/sampler"
)

// An Opener opens the splits of a configuration. Its datasets share connections to stores, memory
// for cache blocks, and tables. It is safe for concurrent use.
type Opener struct {
	Config *config.Config
	Remote *blob.Remote // must not change after the first object is opened
	Tables *sampler.Tables

	// CheckWriters makes it an error if a process has a file open for writing when the file is
	// opened for the first time: see [blob.CheckNoWriters].
	CheckWriters bool

	maps *counts.Maps // see localfile.Options; nil unless the opener is for a mount
	log  *slog.Logger // likewise
}

// NewOpener returns an opener for c, which must not change afterwards. It opens nothing yet.
func NewOpener(c *config.Config) *Opener {
	s, portions := c.Store, c.DivideBudget()
	access := s.Options(c.Mount.Timeout)
	access.Counts = new(counts.Store)
	return &Opener{
		Config: c,
		Remote: &blob.Remote{
			Store: access,
			Blocks: blocks.Options{
				Dir: s.CacheDir, GroupWritable: s.CacheShared, Limit: s.CacheBytes, BlockBytes: s.BlockBytes, Memory: portions.Blocks, PrefetchTimeout: c.Mount.Timeout / 5,
			},
		},
		Tables: sampler.NewTables(portions.Tables),
	}
}

// NewMountOpener is like NewOpener, for the worker of a mount: it counts reads in shared, and logs
// what is wrong with files and with the cache directory.
func NewMountOpener(c *config.Config, shared *state.Shared, log *slog.Logger) *Opener {
	o := NewOpener(c)
	o.maps, o.log = &shared.Maps, log
	o.Remote.Log = log
	o.Remote.Store.Counts = &shared.Store
	o.Remote.Blocks.Counts = blocks.Counts{Blocks: &shared.Blocks, Writes: &shared.Writes}
	return o
}
