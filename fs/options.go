package fs

import (
	"log/slog"
	"time"

	"batchfs/fs/state"
)

// Options configure how a worker serves a mount.
type Options struct {
	Memory    Memory
	Access    Permissions
	Status    Status
	Timeout   time.Duration // limit on the time from a request to its reply
	OnServing func()        // called in a goroutine when this process begins to serve
	// Promoted is called before this process serves, once no other one does. Its error means that
	// this process must not serve.
	Promoted func() error
	Log      *slog.Logger
}

// Memory limits what a worker keeps in memory.
type Memory struct {
	PrefetchBatches int   // batches to prefetch for each sequential reader
	PrefetchBytes   int64 // limit for all prefetched batches
	ReplyBytes      int64 // limit for all replies
	TextBytes       int64 // limit for the texts of all open files
}

// Permissions determine who owns the files and who may use them.
type Permissions struct {
	Mode            uint32 // permission bits of files; readers of files may list directories
	UID, GID        uint32
	SettingsPerUser int // limit on the settings directories of each user, except root and UID
}

// Status renders status.json and metrics, which need more than package fs knows. The functions are
// called one at a time.
type Status struct {
	ProgramVersion string
	JSON           func(LiveStatus) []byte
	Metrics        func(counters *state.Shared) []byte
}
