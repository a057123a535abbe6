package fs

import (
	"log/slog"
	"time"

	"batchfs/fs/state"
)

// Options configure how a worker serves a mount.
type Options struct {
	Memory  Memory
	Access  Access
	Status  Status
	Timeout time.Duration // limit on the time from a request to its reply
	Serving func()        // called in its own goroutine when this process begins to serve
	Log     *slog.Logger
}

// Memory limits what a worker keeps in memory.
type Memory struct {
	PrefetchBatches int   // batches to prefetch for each reader that reads next* or batch/<k> in order
	PrefetchBytes   int64 // memory for prefetched batches, in bytes
	ReplyBytes      int64 // memory for replies that are not prefetched, in bytes
	TextBytes       int64 // memory for the texts of open files, in bytes
}

// Access is the ownership of the files and what other users may do.
type Access struct {
	Mode            uint32 // permission bits of files; directories are executable for users who may read
	UID, GID        uint32 // owner of the files
	SettingsPerUser int    // limit on the settings directories of each user, except root and UID
}

// Status provides the texts that package fs cannot write itself, because it does not know the
// sampler, the stores, the configuration or the format of metrics. The functions are called one at
// a time.
type Status struct {
	ProgramVersion string
	JSON           func(Live) []byte                   // returns the content of status.json
	Metrics        func(counters *state.Shared) []byte // returns the content of metrics
}
