package state

// RecordName records a name, so that the kernel can be told to forget it later. Callers must
// serialize calls.
func (s *Shared) RecordName(n Name) {
	next := &s.names.ring[s.names.recorded.Load()%maxNames]
	next.dir.Store(n.Dir)
	setText(next.name[:], n.Name)
	s.names.recorded.Add(1)
}

// NamesRecorded returns the number of names ever recorded.
func (s *Shared) NamesRecorded() uint64 { return s.names.recorded.Load() }

// NameFrom returns name i, or the oldest one if name i was overwritten, and its number. The last
// maxNames-1 names are available.
func (s *Shared) NameFrom(i uint64) (uint64, Name) {
	recorded := s.NamesRecorded()
	i = max(i, recorded-min(recorded, maxNames-1))
	found := &s.names.ring[i%maxNames]
	return i, Name{found.dir.Load(), getText(found.name[:])}
}
