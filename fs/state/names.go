package state

// RecordName records a name that was looked up, for the kernel to forget it later. The caller serialises calls.
func (s *Shared) RecordName(n Name) {
	at := &s.names.ring[s.names.recorded.Load()%maxNames]
	at.dir.Store(n.Dir)
	setText(at.name[:], n.Name)
	s.names.recorded.Add(1)
}

// NamesRecorded returns how many names were recorded.
func (s *Shared) NamesRecorded() uint64 { return s.names.recorded.Load() }

// NameFrom returns the first name from number i on that is still there, and its number. The last maxNames-1 are.
func (s *Shared) NameFrom(i uint64) (uint64, Name) {
	noted := s.NamesRecorded()
	i = max(i, noted-min(noted, maxNames-1))
	at := &s.names.ring[i%maxNames]
	return i, Name{at.dir.Load(), getText(at.name[:])}
}
