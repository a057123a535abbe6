package state

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"batchfs/cache/counts"
)

// A Version counts how often the tokens of a split have changed since the mount began.
type Version uint64

// MaxSequences is one more than the highest sequence number. The lowest is 1.
const MaxSequences = 1 << 16

// Shared is the shared memory of a mount, as one process maps it. It is safe for concurrent use
// unless a method or field says otherwise. Any process may read it at any time. Only the serving
// worker writes it, except that the supervisor and commands write the fields marked as theirs,
// commands set seek and the records of rows that they read (RecordFor), and NewConnection resets
// the connection's records while no worker runs.
type Shared struct {
	*mountState
	*Counters
	// Sequences is indexed by number. Element 0 counts errors outside all sequences.
	Sequences *[MaxSequences]SequenceState
	slots     *[MaxHandles]slot
	// manyRanges holds the ranges of each slot's two lists if a list has more than maxInline of
	// them. Pages that were never written take no memory.
	manyRanges     *[MaxHandles][2][maxRanges]byteRange
	assignments    *[maxAssignments]assignment
	unfinished     *[maxUnfinished]unfinishedRead
	names          *names
	resentRequests *[maxResentRequests]resentRequest
	readers        *[MaxHandles]ReaderStats // one per slot
	infos          *[MaxSequences]sequenceInfo
	// RowsBySource counts rows by split number and source.
	RowsBySource    *[MaxSequences][MaxSources]SourceRows
	countedRequests *[maxCounted]atomic.Uint64 // request ids: see CountOnce
	lookups         *lookups
	sourceNames     *[MaxSequences][MaxSources][32]byte // padded with zeros
	rowsRead        *rowsRead

	base  unsafe.Pointer // start of the mapping
	bytes uintptr        // length of the mapping

	textsMu sync.Mutex // held while this process writes texts of a sequence, or calls TextsOf
}

// sections returns the sections in the order of the header.
func (s *Shared) sections() []section {
	return []section{
		sectionAt(&s.mountState), sectionAt(&s.Counters), sectionAt(&s.Sequences), sectionAt(&s.slots), sectionAt(&s.manyRanges),
		sectionAt(&s.assignments), sectionAt(&s.unfinished), sectionAt(&s.names), sectionAt(&s.resentRequests),
		sectionAt(&s.readers), sectionAt(&s.infos), sectionAt(&s.RowsBySource), sectionAt(&s.countedRequests), sectionAt(&s.lookups),
		sectionAt(&s.sourceNames), sectionAt(&s.rowsRead),
	}
}

// mountState describes the mount as a whole. New fields go at its end, because processes of other
// builds map it too.
type mountState struct {
	Began     int64         // time of mounting, nanoseconds since 1970; written by the supervisor
	Closing   atomic.Uint32 // nonzero once files can no longer be opened; written by the supervisor
	Worker    atomic.Int64  // process id of the serving worker
	Workers   atomic.Uint64 // workers that have served, including the current one
	Crashes   atomic.Uint64 // workers that crashed or hung; written by the supervisor
	Heartbeat atomic.Int64  // clock.Now of mounting or the last pong; written by the supervisor

	Init      Text // INIT, the kernel's first request on a connection
	InitReply Text

	HandedOver  Text          // record of mount.Adopt, or empty; written by the supervisor
	LastRestart Text          // error of the last restart, or empty: see EndRestart
	Restarts    atomic.Uint64 // restarts that succeeded or were rejected; written by the supervisor

	assigning struct { // assignment in progress (Handles.takeNumber), unless id is 0
		id, fh, number, version atomic.Uint64
	}

	sequencesUsed       atomic.Uint64 // highest sequence number ever used
	slotsUsed           atomic.Uint64 // slots ever used
	assignmentsRecorded atomic.Uint64 // assignments ever recorded

	// Process ids or 0, at most a second old; written by the supervisor.
	Supervisor, Standby atomic.Int64

	OOMScore atomic.Int64 // the supervisor's initial oom_score_adj, which it writes
	program  [64]byte     // version of the worker's batchfs, padded with zeros

	// RestartsBegun also counts the one in progress. Snapshot is the inode number of the current
	// snapshot. The supervisor writes both.
	RestartsBegun    atomic.Uint64
	restartAnnounced atomic.Int64 // clock.Now of the last AnnounceRestart; written by commands
	Snapshot         atomic.Uint64

	outcomes [8]restartOutcome // outcome of restart n at n modulo 8; written by the supervisor
}

// A restartOutcome is how a restart ended.
type restartOutcome struct {
	number  atomic.Uint64 // the first restart is 1; written last
	kind    [16]byte      // name of the failure.Kind, padded with zeros
	message Text          // empty if the restart succeeded
}

// Counters are the counters of a mount. They outlive its workers.
type Counters struct {
	Replies     atomic.Uint64 // requests with a reply
	TextHandles atomic.Uint64 // opened text files
	Maps        counts.Maps

	Store  counts.Store
	Blocks counts.Blocks
	Gauges Gauges
	Writes counts.Writes

	ReplyBytes atomic.Int64 // memory reserved for large replies, in bytes

	_ [256 - 5 - 22 - 4 - 7 - 3 - 1]uint64 // for later builds: 256 words, less those above
}

// Gauges are current values that the serving worker updates.
type Gauges struct {
	Waiting atomic.Int64 // requests that wait for admission

	// These are sizes in bytes, or 0 without a cache directory, which mounts may share.
	CacheUsed, CacheLimit    atomic.Int64 // cache blocks; store.cache_bytes
	CacheNeeded, CacheStored atomic.Int64 // blocks that readers need per epoch; those stored
	CacheFree, CacheDisk     atomic.Int64 // disk space free for this user; size of the disk
}

// SequenceCounters are the counters of a sequence. They outlive workers.
type SequenceCounters struct {
	Reads           atomic.Uint64 // requests that delivered batches
	Bytes           atomic.Uint64 // bytes delivered, including headers
	Errors          atomic.Uint64 // failed requests
	NumbersReturned atomic.Uint64 // numbers returned to the cursor
	Batches         atomic.Uint64 // 1 + the highest batch number delivered, at least in part
	Begun           atomic.Uint64 // batches whose first byte was delivered
	Prefetched      atomic.Uint64 // requests that delivered prefetched batches
	Gap             atomic.Int64  // nanoseconds from replies to the readers' next requests
	Waited          atomic.Int64  // nanoseconds waited for next, first requests excluded
	ReplyTimes      WaitHistogram // all successful requests for next

	_ [40 - 9 - 23]uint64 // for later builds: 40 words, less those above
}

// RecordBatch raises Batches to k+1, if it is less. It is safe for concurrent use.
func (c *SequenceCounters) RecordBatch(k uint64) {
	for old := c.Batches.Load(); old <= k && !c.Batches.CompareAndSwap(old, k+1); old = c.Batches.Load() {
	}
}

// A Text is a string of up to 4096 bytes.
type Text struct {
	len   atomic.Uint64
	bytes [4096]byte
}

// A SequenceState is the state of one sequence. See Shared for its concurrent use.
type SequenceState struct {
	used          atomic.Uint64 // nonzero if the sequence exists; written last, cleared first
	initialCursor atomic.Uint64
	user          atomic.Uint64 // id of the user who looked it up first
	name          [MaxName]byte // padded with zeros
	lastError     [512]byte     // padded with zeros

	// Lookups counts lookups of the sequence's files that the kernel has not forgotten. It is 0 for
	// splits.
	Lookups atomic.Uint64
	Cursor  atomic.Uint64 // see Next
	seek    atomic.Uint64 // 1 + requested cursor, or 0; set by commands, cleared by the worker
	// WaitingSince is the clock.Now at which the oldest request of a split and its settings
	// directories, or a check of its files, began; 0 if none has waited for a second.
	WaitingSince atomic.Int64

	SequenceCounters
}

// MaxName is the size of a sequence's name in bytes. Longer names are rejected: a split's own name
// takes at most 100, and settings that differ from the split's are rarely longer than 200.
const MaxName = 344

// An assignment is the batch number of a request. Threads that share a handle can have several
// requests in flight, and the slot records only the last one.
type assignment struct {
	id, number, version atomic.Uint64
}

const maxAssignments = 1 << 10

// A resentRequest is a resent request without a reply. A later one may overwrite it.
type resentRequest struct {
	id      atomic.Uint64 // request id, or 0
	crashes atomic.Uint64 // value of Crashes when the request was first resent
}

const maxResentRequests = 1 << 12

// A Name is a name that was looked up in a directory.
type Name struct {
	Dir  uint64 // inode number of the directory
	Name string // at most 255 bytes
}

type names struct {
	recorded atomic.Uint64 // names ever recorded; name i is in ring[i%maxNames]
	ring     [maxNames]struct {
		dir  atomic.Uint64
		name [256]byte // padded with zeros
	}
}

const maxNames = 1 << 13
