package state

import (
	"cmp"
	"slices"
	"sync/atomic"

	"batchfs/internal/clock"
	"batchfs/internal/failpoint"
)

// lookups complement SequenceState.Lookups, the number of the kernel's lookups in each sequence.
// They record the requests that were counted, and the inode numbers of the settings directories
// that the kernel may know.
type lookups struct {
	worker   atomic.Uint64 // value of Workers when a build with this section last took over
	counting struct {      // the lookup that CountLookup is counting
		id     atomic.Uint64 // request; 0 if there is none
		number atomic.Uint64 // number of its sequence
		count  atomic.Uint64 // lookups of the sequence, this one included
	}
	counted     [maxLookups]lookup // requests counted last, at index id/2 modulo maxLookups
	directories [MaxSequences]directories
}

// A lookup is a request and the sequence that it was counted for.
type lookup struct{ id, number atomic.Uint64 }

const maxLookups = 1 << 12

// directories are the settings directories of one sequence. There can be several: the kernel may
// look up "a=1,b=2", "b=2,a=1" and "a=1/b=2", and each has its own inode.
type directories struct {
	// Nonzero if inodes lists every directory that was looked up since the sequence began.
	complete atomic.Uint64
	retired  atomic.Int64                  // time when the number was retired, see clock.Now; or 0
	inodes   [maxDirectories]atomic.Uint64 // inode numbers; 0 marks an unused element
}

// maxDirectories is the number of directories that are recorded for a sequence. A sequence that has
// more is never retired.
const maxDirectories = 14

// BeginWorker counts this worker, which is about to serve, and returns the number of workers that
// have served, this one included.
func (s *Shared) BeginWorker() uint64 {
	n := s.Workers.Add(1)
	s.lookups.worker.Store(n)
	return n
}

// ResumeLookups finishes counting a lookup if the worker before died in the middle. If that worker
// was of a build that did not record directories, they are no longer complete.
func (s *Shared) ResumeLookups() {
	l := s.lookups
	if l.worker.Load() != s.Workers.Load() { // an earlier build served last
		for n := range s.SequencesUsed() {
			l.directories[n+1].complete.Store(0)
		}
	}
	if c := &l.counting; c.id.Load() != 0 && s.Sequences[c.number.Load()].Lookups.Load() >= c.count.Load() {
		s.finishCounting()
	}
	l.counting.id.Store(0)
}

// CountLookup counts request id, a lookup of a file of a sequence. It counts each request once,
// even if a worker counts it and dies before the kernel has the reply, so that the next worker
// handles it again. Callers must serialize calls to CountLookup, Add, Remove and the methods below.
func (s *Shared) CountLookup(number int, id uint64) {
	if at := s.lookupAt(id); id&Resent != 0 && at.id.Load() == id&^Resent && at.number.Load() == uint64(number) {
		return
	}
	c, entry := &s.lookups.counting, &s.Sequences[number]
	c.number.Store(uint64(number))
	c.count.Store(entry.Lookups.Load() + 1)
	c.id.Store(id &^ Resent)
	failpoint.Hit("counting")
	entry.Lookups.Add(1)
	failpoint.Hit("added")
	s.finishCounting()
	failpoint.Hit("counted")
	c.id.Store(0)
}

func (s *Shared) finishCounting() {
	c := &s.lookups.counting
	at := s.lookupAt(c.id.Load())
	at.id.Store(0)
	at.number.Store(c.number.Load())
	at.id.Store(c.id.Load())
}

func (s *Shared) lookupAt(id uint64) *lookup { return &s.lookups.counted[id&^Resent/2%maxLookups] }

// RecordDirectory records the inode number of a directory of a sequence. It must be called before
// the kernel knows the directory.
func (s *Shared) RecordDirectory(number int, inode uint64) {
	d := &s.lookups.directories[number]
	for i := range d.inodes {
		switch d.inodes[i].Load() {
		case 0:
			d.inodes[i].Store(inode)
			return
		case inode:
			return
		}
	}
	d.complete.Store(0)
}

// Directories returns the inode numbers of all directories through which the kernel may know
// files of a sequence. ok is false if some of them were not recorded.
func (s *Shared) Directories(number int) (inodes []uint64, ok bool) {
	d := &s.lookups.directories[number]
	for i := range d.inodes {
		if inode := d.inodes[i].Load(); inode != 0 {
			inodes = append(inodes, inode)
		}
	}
	return inodes, d.complete.Load() != 0
}

// Retire ends a sequence that has counted more lookups than the kernel will forget. Its number
// should be reused only when there are no other numbers left.
func (s *Shared) Retire(number int) {
	s.lookups.directories[number].retired.Store(clock.Now())
	s.Sequences[number].Lookups.Store(0)
	failpoint.Hit("retire")
	s.Remove(number)
}

// Free returns the numbers of sequences that have ended: those that may be reused at any time, and
// those that were retired, oldest first.
func (s *Shared) Free() (free, retired []int) {
	at := func(number int) int64 { return s.lookups.directories[number].retired.Load() }
	for number := 1; number <= s.SequencesUsed(); number++ {
		switch {
		case s.Sequences[number].Used():
		case at(number) == 0:
			free = append(free, number)
		default:
			retired = append(retired, number)
		}
	}
	slices.SortFunc(retired, func(a, b int) int { return cmp.Compare(at(a), at(b)) })
	return free, retired
}

// beginLookups clears the directories and counted requests of the sequence that had the number
// before.
func (s *Shared) beginLookups(number int) {
	d := &s.lookups.directories[number]
	d.retired.Store(0)
	if d.inodes[0].Load() == 0 {
		d.complete.Store(1)
		return
	}
	d.complete.Store(0)
	for i := range s.lookups.counted {
		if at := &s.lookups.counted[i]; at.number.Load() == uint64(number) {
			at.id.Store(0)
		}
	}
	for i := range d.inodes {
		d.inodes[i].Store(0)
	}
	d.complete.Store(1)
}
