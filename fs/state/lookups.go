package state

import (
	"cmp"
	"slices"
	"sync/atomic"

	"batchfs/internal/failpoint"
)

// lookups are what the shared memory has of the kernel's lookups, besides how many each Entry has:
// which requests were counted, and the inode numbers under which the kernel knows the directories
// of settings.
type lookups struct {
	worker   atomic.Uint64 // Workers when a worker last took over that keeps this section
	counting struct {
		id, number, count atomic.Uint64 // the request that is being counted, its sequence, and the count afterwards; id 0: none
	}
	counted     [maxLookups]lookup // by id/2, modulo maxLookups
	directories [MaxSequences]directories
}

// A lookup is a request and the sequence that it was counted for.
type lookup struct{ id, number atomic.Uint64 }

const maxLookups = 1 << 12

// directories are the directories of one sequence: the kernel may look up "a=1,b=2", "b=2,a=1" and
// "a=1/b=2", and each has its own inode.
type directories struct {
	complete atomic.Uint64                 // not 0: inodes has every directory that was looked up since the sequence began
	retired  atomic.Int64                  // when the number was retired, in Monotonic time; or 0
	inodes   [maxDirectories]atomic.Uint64 // 0: free
}

// maxDirectories bounds the directories of a sequence that are noted. A sequence that has more is
// never retired.
const maxDirectories = 14

// BeginWorker counts this worker, which is about to serve, and returns how many have served, this
// one included.
func (s *Shared) BeginWorker() uint64 {
	n := s.Workers.Add(1)
	s.lookups.worker.Store(n)
	return n
}

// ResumeLookups completes the count that a dead worker was in the middle of.
func (s *Shared) ResumeLookups() {
	l := s.lookups
	if l.worker.Load() != s.Workers.Load() { // an earlier build served last, and noted no directories
		for n := range s.SequencesUsed() {
			l.directories[n+1].complete.Store(0)
		}
	}
	if c := &l.counting; c.id.Load() != 0 && s.Sequences[c.number.Load()].Lookups.Load() >= c.count.Load() {
		s.finishCounting()
	}
	l.counting.id.Store(0)
}

// CountLookup counts a lookup of a file of a sequence, once for each request. A worker may die
// after it has counted a request, and before the kernel has the reply. The caller serialises calls,
// as of the methods below, Add and Remove.
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

// NoteDirectory notes a directory of a sequence before the kernel knows it.
func (s *Shared) NoteDirectory(number int, inode uint64) {
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

// Directories returns all directories under which the kernel may know files of a sequence. ok is
// false if they are not known.
func (s *Shared) Directories(number int) (inodes []uint64, ok bool) {
	d := &s.lookups.directories[number]
	for i := range d.inodes {
		if inode := d.inodes[i].Load(); inode != 0 {
			inodes = append(inodes, inode)
		}
	}
	return inodes, d.complete.Load() != 0
}

// Retire ends a sequence whose lookups are more than the kernel knows. Its number should begin
// another only after all others.
func (s *Shared) Retire(number int) {
	s.lookups.directories[number].retired.Store(Monotonic())
	s.Sequences[number].Lookups.Store(0)
	failpoint.Hit("retire")
	s.Remove(number)
}

// Free returns the numbers that were used and are not now: those that may begin another sequence at
// any time, and those that were retired, the first one first.
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

// beginLookups forgets what is known of the sequence that had the number before.
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
