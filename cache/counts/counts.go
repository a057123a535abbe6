// Package counts declares the counters of package cache. They lie in memory that several processes
// share, so their order and sizes must not change.
package counts

import "sync/atomic"

// Store counts requests to stores.
type Store struct {
	Requests atomic.Int64      // requests sent, including retries
	Bytes    atomic.Int64      // bytes of objects received
	Retries  atomic.Int64      // attempts after one that failed
	Errors   atomic.Int64      // requests answered with 429 or 5xx, or not at all
	Nanos    atomic.Int64      // total time until the head of the answer, in nanoseconds
	Buckets  [17]atomic.Uint64 // requests by that time: below 1 ms, 2 ms, … 32.8 s, and all others
}

// Blocks counts reads of cache blocks.
type Blocks struct {
	Hits   atomic.Int64 // reads of a block that was in memory or in the directory
	Waits  atomic.Int64 // reads that waited until a block was fetched
	Waited atomic.Int64 // total time of these waits, in nanoseconds
	// Full is the fifth outcome of a fetched block, besides being written and the three in Writes:
	// the directory had no room for it.
	Full atomic.Int64
}

// Writes counts fetched blocks that were not written to the directory. See also Blocks.Full.
type Writes struct {
	Present atomic.Int64 // blocks that another process had written first
	Failed  atomic.Int64 // blocks not written because the directory failed
	Slow    atomic.Int64 // blocks given up because the disk, or the directory's lock, took too long
}

// Remaps counts reads of token files under access = "remap".
type Remaps struct {
	Mapped atomic.Int64 // reads that mapped a file
	Busy   atomic.Int64 // reads that used pread because another read was mapping a file
}
