package state

import (
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"batchfs/internal/clock"
)

// rowsRead records how far the rows of each split have been read, so that restart can tell which
// rows of a schedule must not change. Workers write it, and so does batchfs cat, which computes the
// batches of a mount in its own process.
type rowsRead struct {
	generation atomic.Uint64 // generation of the schedules; see SetScheduleGeneration
	splits     [MaxSequences]struct {
		isFull   atomic.Uint64 // nonzero once a schedule found no unused element of furthest
		furthest [maxFurthest]RowsRecord
	} // indexed by the number of the split
}

// maxFurthest limits how many schedules of a split are recorded. Usually, there is one for each
// block size and layout that is read.
const maxFurthest = 8

// A RowsRecord records the highest row that was read from the sequences of a split that have the
// same schedule. Rows have the numbers that they have in the schedule: if each host reads a share
// of its own, these count the rows of one host, and the highest of all hosts is recorded. A
// RowsRecord remains when its sequences are closed. It is safe for concurrent use.
type RowsRecord struct {
	key  atomic.Uint64 // hash of settings; 0 if the element is unused
	rows atomic.Uint64 // number of the highest row that was read, plus 1

	// These describe the batch with the highest row, or one close to it if several are read at the
	// same time.
	batch    atomic.Uint64
	readAt   atomic.Int64  // clock.Now of the read
	path     [MaxName]byte // directory of the batch, padded with zeros
	settings [256]byte     // path settings that give the split this schedule, padded with zeros
}

// SetScheduleGeneration sets the generation of the schedules that the mount serves. A process that
// computes batches itself must compare it with the generation of its own schedules after it has
// recorded rows and before it delivers them. It must not deliver the rows unless the two are equal.
func (s *Shared) SetScheduleGeneration(generation uint64) { s.rowsRead.generation.Store(generation) }

// ScheduleGeneration returns the last value of SetScheduleGeneration.
func (s *Shared) ScheduleGeneration() uint64 { return s.rowsRead.generation.Load() }

// RowsRecords returns the records of a split that have at least one row. all reports whether they
// cover all rows that were read.
func (s *Shared) RowsRecords(split string) (list []*RowsRecord, all bool) {
	p := &s.rowsRead.splits[s.splitNumber(split)]
	for i := range p.furthest {
		if p.furthest[i].Rows() > 0 {
			list = append(list, &p.furthest[i])
		}
	}
	return list, p.isFull.Load() == 0
}

// RecordFor returns the record for the schedule that a split has under path settings. It returns
// nil if the split has too many records; from then on, RowsRecords reports that they do not cover
// all rows.
func (s *Shared) RecordFor(split, settings string) *RowsRecord {
	p := &s.rowsRead.splits[s.splitNumber(split)]
	hash := fnv.New64a()
	hash.Write([]byte(settings))
	for i := range p.furthest {
		r := &p.furthest[i]
		if r.key.CompareAndSwap(0, hash.Sum64()) || r.key.Load() == hash.Sum64() {
			copy(r.settings[:], settings) // the process that set key may have died before it did so
			return r
		}
	}
	p.isFull.Store(1)
	return nil
}

// splitNumber returns the number of a split, or 0 if there is none.
func (s *Shared) splitNumber(name string) int {
	for n := 1; n <= s.SequencesUsed(); n++ {
		if q := &s.Sequences[n]; q.Used() && q.Name() == name {
			return n
		}
	}
	return 0
}

// describing lets one goroutine of this process at a time write the fields of a RowsRecord that
// describe a batch. They are for messages, and may be mixed if batchfs cat writes them, too.
var describing sync.Mutex

// Record records that row rows-1 of the schedule is being read, as part of a batch in the directory
// path. r may be nil.
func (r *RowsRecord) Record(rows uint64, path string, batch uint64) {
	if r == nil {
		return
	}
	for old := r.rows.Load(); ; old = r.rows.Load() {
		if rows <= old {
			return
		}
		if r.rows.CompareAndSwap(old, rows) {
			break
		}
	}
	if describing.TryLock() {
		r.batch.Store(batch)
		r.readAt.Store(clock.Now())
		setText(r.path[:], path)
		describing.Unlock()
	}
}

// Settings returns the settings that were passed to RecordFor.
func (r *RowsRecord) Settings() string { return getText(r.settings[:]) }

// Rows returns the number of the highest row that was read, plus 1.
func (r *RowsRecord) Rows() uint64 { return r.rows.Load() }

// Batch returns the directory and the number of the batch with that row, and the time since it was
// read.
func (r *RowsRecord) Batch() (path string, number uint64, ago time.Duration) {
	return getText(r.path[:]), r.batch.Load(), time.Duration(clock.Now() - r.readAt.Load())
}
