package fs

import (
	"log/slog"
	"time"

	"batchfs/fs/state"
)

// Options configure a mount, besides its sequences.
type Options struct {
	Memory  Memory
	Access  Access
	Status  Status
	Timeout time.Duration // limit on the time until a reply
	Serving func()        // runs in a goroutine of its own when this process begins to serve
	Log     *slog.Logger
}

// Memory limits what a worker keeps in memory.
type Memory struct {
	PrefetchBatches int   // batches to prefetch for each reader of next* or batch/<k> in order
	PrefetchBytes   int64 // prefetched batches, in bytes
	ReplyBytes      int64 // replies other than prefetched batches, in bytes
	TextBytes       int64 // texts that open files show, in bytes
}

// Access is who may do what.
type Access struct {
	Mode            uint32 // permission bits of files; users who may read files may list directories
	UID, GID        uint32 // owner of the files
	SettingsPerUser int    // settings directories that each user may have, except root and UID
}

// Status makes the texts that only the caller can make: this package does not know the sampler, the
// stores, the configuration or the format of metrics.
type Status struct {
	ProgramVersion string
	JSON           func(Live) []byte                   // content of status.json
	Metrics        func(counters *state.Shared) []byte // content of metrics
}
