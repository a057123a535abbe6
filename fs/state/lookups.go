package state

import "batchfs/fs/failpoint"

// CountLookup notes that the kernel is told of a file of a sequence, in answer to request id. Idempotent: a request that is
// sent again counts once. It can be cut at any failpoint. The caller serialises calls, as of the functions below.
func (s *Shared) CountLookup(number int, id uint64) {
	l := s.lookups
	if id&Resent != 0 {
		id &^= Resent
		for i := range l.counted {
			if l.counted[i].Load() == id {
				return
			}
		}
	}
	l.number.Store(uint64(number))
	l.wanted.Store(s.Sequences[number].lookups.Load() + 1)
	failpoint.Hit("lookup wanted")
	l.request.Store(id)
	failpoint.Hit("lookup asked")
	s.Sequences[number].lookups.Store(l.wanted.Load())
	failpoint.Hit("lookup counted")
	s.finishLookup()
}

func (s *Shared) finishLookup() {
	l := s.lookups
	l.counted[l.made.Add(1)%maxCounted].Store(l.request.Load())
	failpoint.Hit("lookup noted")
	l.request.Store(0)
}

// ResumeLookups completes the count that a worker was killed in.
func (s *Shared) ResumeLookups() {
	l := s.lookups
	if l.request.Load() == 0 {
		return
	}
	// Nothing else was counted since, so the count was made exactly if lookups has the wanted value.
	if s.Sequences[l.number.Load()].lookups.Load() == l.wanted.Load() {
		s.finishLookup()
	}
	l.request.Store(0)
}

// ForgetLookups notes that the kernel has forgotten n lookups of a sequence. It returns how many are left.
func (s *Shared) ForgetLookups(number int, n uint64) (left uint64) {
	return s.Sequences[number].lookups.Add(-n)
}

// Lookups is how many lookups of a sequence the kernel has not forgotten.
func (s *Shared) Lookups(number int) uint64 { return s.Sequences[number].lookups.Load() }

// NoteName notes a name that was looked up, for a successor to have the kernel forget. The caller serialises calls, as of
// ForgetNames.
func (s *Shared) NoteName(n Name) {
	at := &s.names.ring[s.names.noted.Load()%maxNames]
	at.dir.Store(n.Dir)
	setText(at.name[:], n.Name)
	s.names.noted.Add(1)
}

// ForgetNames notes that so many of the oldest names need not be known any more.
func (s *Shared) ForgetNames(n uint64) { s.names.forgotten.Add(n) }

// Names returns the noted names that are not forgotten, oldest first, at most maxNames-1. It begins with up to again names that
// were forgotten last: invalidations run side by side, so one of these may not have reached the kernel when the worker died.
func (s *Shared) Names(again uint64) (list []Name) {
	noted := s.names.noted.Load()
	first := s.names.forgotten.Load()
	first -= min(first, again)
	if noted-first >= maxNames {
		first = noted - maxNames + 1
	}
	for i := first; i < noted; i++ {
		at := &s.names.ring[i%maxNames]
		list = append(list, Name{at.dir.Load(), getText(at.name[:])})
	}
	return list
}
