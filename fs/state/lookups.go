package state

import (
	"cmp"
	"slices"
	"sync/atomic"

	"batchfs/internal/clock"
	"batchfs/internal/failpoint"
)

// lookups records the requests counted in SequenceState.Lookups, and the inode numbers of the
// settings directories that the kernel may know.
type lookups struct {
	counting struct { // lookup that CountLookup is counting
		id     atomic.Uint64 // request id, or 0
		number atomic.Uint64 // sequence number
		count  atomic.Uint64 // lookups of the sequence, including this one
	}
	countedLookups [maxLookups]lookup // latest requests: see lookupAt
	directories    [MaxSequences]directories
}

type lookup struct{ id, number atomic.Uint64 } // request id; sequence number

const maxLookups = 1 << 12

// directories lists the settings directories of one sequence. There can be several, because
// "a=1,b=2", "b=2,a=1" and "a=1/b=2" each have their own inode.
type directories struct {
	// complete is nonzero if inodes has all directories of the sequence that were looked up.
	complete  atomic.Uint64
	retiredAt atomic.Int64                  // clock.Now of Retire, or 0
	inodes    [maxDirectories]atomic.Uint64 // 0 if unused
}

// maxDirectories is the number of directories recorded per sequence. A sequence with more is never
// retired.
const maxDirectories = 14

// ResumeLookups completes or discards a CountLookup during which the previous worker died.
func (s *Shared) ResumeLookups() {
	c := &s.lookups.counting
	if c.id.Load() != 0 && s.Sequences[c.number.Load()].Lookups.Load() >= c.count.Load() {
		s.finishCounting()
	}
	c.id.Store(0)
}

// CountLookup counts a lookup of a file of a sequence. A resent request that an earlier worker has
// counted is counted again only if its record was overwritten. Callers must serialize calls of
// CountLookup, Add, Remove and the methods below.
func (s *Shared) CountLookup(number int, id uint64) {
	if l := s.lookupAt(id); id&Resent != 0 && l.id.Load() == id&^Resent && l.number.Load() == uint64(number) {
		return
	}
	c, q := &s.lookups.counting, &s.Sequences[number]
	c.number.Store(uint64(number))
	c.count.Store(q.Lookups.Load() + 1)
	c.id.Store(id &^ Resent)
	failpoint.Hit("counting")
	q.Lookups.Add(1)
	failpoint.Hit("added")
	s.finishCounting()
	failpoint.Hit("counted")
	c.id.Store(0)
}

func (s *Shared) finishCounting() {
	c := &s.lookups.counting
	l := s.lookupAt(c.id.Load())
	l.id.Store(0)
	l.number.Store(c.number.Load())
	l.id.Store(c.id.Load())
}

func (s *Shared) lookupAt(id uint64) *lookup {
	return &s.lookups.countedLookups[id&^Resent/2%maxLookups]
}

// RecordDirectory records a directory of a sequence. It must be called before the kernel learns of
// the directory.
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

// Directories returns the inode numbers of the directories through which the kernel may know a
// sequence. ok is false if some were not recorded.
func (s *Shared) Directories(number int) (inodes []uint64, ok bool) {
	d := &s.lookups.directories[number]
	for i := range d.inodes {
		if inode := d.inodes[i].Load(); inode != 0 {
			inodes = append(inodes, inode)
		}
	}
	return inodes, d.complete.Load() != 0
}

// Retire ends a sequence with more counted lookups than the kernel will forget. Its number should
// be reused only if no other is free.
func (s *Shared) Retire(number int) {
	s.lookups.directories[number].retiredAt.Store(clock.Now())
	s.Sequences[number].Lookups.Store(0)
	failpoint.Hit("retire")
	s.Remove(number)
}

// FreeNumbers returns the numbers of ended sequences. free may be reused; retired has those passed
// to Retire, oldest first.
func (s *Shared) FreeNumbers() (free, retired []int) {
	retiredAt := func(number int) int64 { return s.lookups.directories[number].retiredAt.Load() }
	for number := 1; number <= s.SequencesUsed(); number++ {
		switch {
		case s.Sequences[number].Used():
		case retiredAt(number) == 0:
			free = append(free, number)
		default:
			retired = append(retired, number)
		}
	}
	slices.SortFunc(retired, func(a, b int) int { return cmp.Compare(retiredAt(a), retiredAt(b)) })
	return free, retired
}

// resetLookups discards the records of the previous sequence with this number.
func (s *Shared) resetLookups(number int) {
	d := &s.lookups.directories[number]
	d.retiredAt.Store(0)
	if d.inodes[0].Load() == 0 {
		d.complete.Store(1)
		return
	}
	d.complete.Store(0)
	for i := range s.lookups.countedLookups {
		if l := &s.lookups.countedLookups[i]; l.number.Load() == uint64(number) {
			l.id.Store(0)
		}
	}
	for i := range d.inodes {
		d.inodes[i].Store(0)
	}
	d.complete.Store(1)
}
