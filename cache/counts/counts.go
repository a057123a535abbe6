// Package counts declares the counters of package cache and its subpackages. They lie in memory
// that several processes share, so their order and sizes must not change. They are safe for
// concurrent use.
package counts

import "sync/atomic"

// Store counts requests to stores.
type Store struct {
	Requests atomic.Int64 // requests sent, including retries
	Bytes    atomic.Int64 // bytes of objects received
	Retries  atomic.Int64 // attempts made after a temporary error
	Errors   atomic.Int64 // requests answered with 429 or 5xx, or not at all
	Nanos    atomic.Int64 // total time from request to response header, in nanoseconds
	// Buckets counts requests by response time: below 1 ms, 2 ms, 4 ms and so on. The last one
	// counts all others.
	Buckets [17]atomic.Uint64
}

// Blocks counts reads of cache blocks.
type Blocks struct {
	Hits      atomic.Int64 // reads of a block in memory or in the directory
	Waits     atomic.Int64 // reads that waited for a block to be fetched
	WaitNanos atomic.Int64 // total duration of these waits, in nanoseconds
	// Full counts fetched blocks for which the directory had no room. Writes counts the other
	// failures.
	Full atomic.Int64
}

// Writes counts fetched blocks that were not written to the directory.
type Writes struct {
	Present atomic.Int64 // blocks that another process wrote first
	Failed  atomic.Int64 // blocks not written because the directory failed
	Slow    atomic.Int64 // blocks given up because the disk was slow or the directory stayed locked
}

// Maps counts reads of token files under access = "remap" and "advise".
type Maps struct {
	Mapped   atomic.Int64 // reads from a mapping
	Busy     atomic.Int64 // reads that used pread because another read was mapping a file
	Unmapped atomic.Int64 // reads that used pread because the file could not be mapped
}
