package state

import (
	"sync/atomic"
	"unsafe"

	"batchfs/cache/counts"
)

// Version counts how often the tokens of a split have changed since the mount began.
type Version uint64

// MaxSequences bounds the numbers of sequences: they are from 1 to MaxSequences-1.
const MaxSequences = 1 << 16

// Shared is the state that a replacement worker needs, in shared memory. Any process may read it at
// any time. Only the worker that serves writes it, except for the fields that are marked as the
// supervisor's.
type Shared struct {
	*mount
	*Counters
	// Sequences are the sequences by number. Number 0 counts the errors of requests that belong to
	// no sequence.
	Sequences *[MaxSequences]SequenceState
	slots     *[MaxHandles]slot
	// Byte ranges of slots with more than fewRanges; pages that are never written take no memory.
	manyRanges  *[MaxHandles][2][maxRanges]byteRange
	assignments *[maxAssignments]assignment
	unfinished  *[maxUnfinished]unfinished
	names       *names
	attempts    *[maxAttempts]attempt
	readers     *[MaxHandles]ReaderStats // one for each slot
	infos       *[MaxSequences]sequenceInfo
	// Rows from each source of a mixture, by number of the split. The last element of a split also
	// counts the rows of all further sources.
	Sources *[MaxSequences][MaxSources]SourceRows
	counted *[maxCounted]atomic.Uint64 // requests counted last, see CountOnce
	lookups *lookups

	base  unsafe.Pointer // start of the mapping
	bytes uintptr        // length of the mapping
}

// sections are the parts of the memory, by their numbers in the header.
func (s *Shared) sections() []section {
	return []section{
		sectionAt(&s.mount), sectionAt(&s.Counters), sectionAt(&s.Sequences), sectionAt(&s.slots), sectionAt(&s.manyRanges),
		sectionAt(&s.assignments), sectionAt(&s.unfinished), sectionAt(&s.names), sectionAt(&s.attempts),
		sectionAt(&s.readers), sectionAt(&s.infos), sectionAt(&s.Sources), sectionAt(&s.counted), sectionAt(&s.lookups),
	}
}

// A later build adds fields at the end.
type mount struct {
	Began     int64         // when the mount was made, in nanoseconds since 1970: the time of its files
	Closing   atomic.Uint32 // not 0: files are opened no more; the supervisor's
	Worker    atomic.Int64  // the process that serves
	Workers   atomic.Uint64 // how many have served, this one included
	Crashes   atomic.Uint64 // how many ended by themselves, or hung, and were not killed from outside; the supervisor's
	Heartbeat atomic.Int64  // when the worker last answered the supervisor, in clock.Now time; the supervisor's

	Init      Text // the kernel's first request, which it sends once a connection
	InitReply Text // the answer

	HandedOver  Text          // source and mountpoint of a mount that was handed over, as mount.Adopt notes them; or empty
	LastRestart Text          // why the last restart was refused, or empty; the supervisor's
	Restarts    atomic.Uint64 // restarts that were asked for and are over; the supervisor's

	assigning struct { // the number that a handle is being given, where id is not 0
		id, fh, number, version atomic.Uint64
	}

	sequencesUsed atomic.Uint64 // Sequences ever used, without number 0
	slotsUsed     atomic.Uint64 // slots ever used
	assigned      atomic.Uint64 // assignments ever noted
	_             atomic.Uint64 // older builds' position in unfinished

	Supervisor, Standby atomic.Int64 // the ids of these processes, up to a second ago; the supervisor's
	program             [64]byte     // the version of the worker, zeros behind it
}

// Counters of a mount outlive its workers.
type Counters struct {
	Replies     atomic.Uint64 // requests
	TextHandles atomic.Uint64 // handles of texts ever opened
	Remaps      counts.Remaps

	Store  counts.Store
	Blocks counts.Blocks
	Gauges Gauges
	Writes counts.Writes

	ReplyBytes atomic.Int64 // memory of the replies that count, of the worker that serves, in bytes

	_ [256 - 4 - 22 - 4 - 7 - 3 - 1]uint64 // room for later builds' counters
}

// Gauges are what the worker that serves notes every few seconds.
type Gauges struct {
	Waiting atomic.Int64 // requests that wait for others

	// Bytes of the directory of blocks, of all mounts that have it; 0: there is none.
	CacheUsed, CacheLimit    atomic.Int64 // of its blocks, and store.cache_bytes
	CacheNeeded, CacheStored atomic.Int64 // of the blocks that an epoch of all its readers needs, and of those of them that are there
	CacheFree, CacheDisk     atomic.Int64 // that its disk has for this user, and of its disk
}

// SequenceCounters are the counters of a sequence. They outlive workers.
type SequenceCounters struct {
	Reads           atomic.Uint64 // requests answered with batches
	Bytes           atomic.Uint64 // of batches, delivered
	Errors          atomic.Uint64 // requests answered with an error
	NumbersReturned atomic.Uint64 // numbers that went back to the cursor: see Handles.Rollback and Release
	Batches         atomic.Uint64 // one more than the highest batch that was delivered, in part or whole; 0: none was
	Begun           atomic.Uint64 // batches whose first byte was delivered
	Ready           atomic.Uint64 // requests answered with batches that were made ahead
	Gap             atomic.Int64  // nanoseconds from an answer to a reader of next to its next request
	Waited          atomic.Int64  // nanoseconds that readers of next waited for answers, from their second request on
	Waits           WaitHistogram // of requests for next

	_ [32 - 9 - 23]uint64 // room for later builds' counters
}

// RecordBatch raises Batches.
func (c *SequenceCounters) RecordBatch(k uint64) {
	for was := c.Batches.Load(); was <= k && !c.Batches.CompareAndSwap(was, k+1); was = c.Batches.Load() {
	}
}

// A Text has up to 4096 bytes.
type Text struct {
	len   atomic.Uint64
	bytes [4096]byte
}

// A SequenceState is one sequence's share of the state.
type SequenceState struct {
	used      atomic.Uint64 // not 0: there is such a sequence; written last, and cleared first
	start     atomic.Uint64 // where the cursor began
	user      atomic.Uint64 // who looked it up first: a user's id
	name      [maxName]byte // zeros behind it
	lastError [512]byte     // the last error, zeros behind it

	Lookups      atomic.Uint64 // of its files, that the kernel has not forgotten; not counted for splits
	Cursor       atomic.Uint64 // the number that the next reader of next takes, unless seek is set: see Next
	seek         atomic.Uint64 // 1 + the number that the cursor should be set to, or 0; commands write it, and the worker clears it
	WaitingSince atomic.Int64  // since when its longest request has waited for more than a second, in clock.Now time; or 0

	SequenceCounters
}

// A name is a split, of at most 100 bytes, and settings, of less than 200.
const maxName = 344

// MaxHandles is how many handles of next, next.npy and next.safetensors can be open, of all sequences together.
const MaxHandles = 1 << 16

// A slot is one open handle, and no other handle has it at the same time. See handleState.
type slot struct {
	sequence   atomic.Uint64 // number of the sequence; 0: the slot is free
	opener     atomic.Uint64 // id of the request that opened the handle
	opens      atomic.Uint64 // handles that have had the slot; part of their numbers
	flags      atomic.Uint64 // hasBatch, tentative, hasUnfinished, sought; from bit versionShift on, the version of the batch's tokens
	number     atomic.Uint64 // number of the batch
	assignedTo atomic.Uint64 // id of the request that the number was assigned to
	size       atomic.Uint64 // size of the file, in bytes
	reads      atomic.Uint64 // requests that have read the batch
	counted    atomic.Uint64 // id of the last of them
	thread     atomic.Uint64 // thread in the middle of a read(2) of the batch, if cut is not 0
	cut        atomic.Uint64 // offset of the next request of that read(2)
	lastFrom   atomic.Uint64 // offset of the request after which the batch was whole
	lastTo     atomic.Uint64 // end of that request
	lastThread atomic.Uint64 // thread that sent it
	current    atomic.Uint64 // index of the valid list: 0 or 1
	lists      [2]rangeList  // delivered ranges of the batch
}

// The ranges of a rangeList ascend and do not touch.
type rangeList struct {
	n   atomic.Uint64
	few [fewRanges]byteRange // in use where n <= fewRanges; otherwise manyRanges of the same slot and list is
}

type byteRange struct{ from, to int64 }

// A batch is not read on when more than maxRanges ranges were delivered that do not touch.
const (
	fewRanges = 3
	maxRanges = 128
)

// An unfinished read(2) is one that the kernel cut and whose handle holds another thread's batch now.
type unfinished struct {
	fh      atomic.Uint64 // number of the handle; 0 or a closed handle: the element is free
	thread  atomic.Uint64 // thread that continues
	cut     atomic.Uint64 // offset of its next request
	number  atomic.Uint64 // number of its batch
	version atomic.Uint64 // version of the batch's tokens
}

const maxUnfinished = 1 << 8

// The bits of slot.flags.
const (
	hasBatch      = 1 << iota // the handle holds a batch
	tentative                 // opened with O_NONBLOCK: see Handles.Release
	hasUnfinished             // some of its reads may be unfinished
	sought                    // a seek has moved the cursor since number was assigned, so it is not returned

	versionShift = 8
)

// An assignment is the batch of a request. Threads that share a handle have several requests in
// flight, and the slot knows only the last.
type assignment struct {
	id, number, version atomic.Uint64
}

const maxAssignments = 1 << 10

// An attempt is the last request of its place that was sent again and has no answer yet.
type attempt struct {
	id      atomic.Uint64 // of the request, or 0
	crashes atomic.Uint64 // Crashes when it was first sent again
}

const maxAttempts = 1 << 12

// A Name is a name in a directory, as it was looked up.
type Name struct {
	Dir  uint64 // inode number of the directory
	Name string // at most 255 bytes
}

type names struct {
	recorded atomic.Uint64 // ever; name i is in ring[i%maxNames]
	ring     [maxNames]struct {
		dir  atomic.Uint64
		name [256]byte // zeros behind it
	}
}

const maxNames = 1 << 13
