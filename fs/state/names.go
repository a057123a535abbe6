package state

// NoteName notes a name that was looked up, for the kernel to forget it later. The caller serialises calls.
func (s *Shared) NoteName(n Name) {
	at := &s.names.ring[s.names.noted.Load()%maxNames]
	at.dir.Store(n.Dir)
	setText(at.name[:], n.Name)
	s.names.noted.Add(1)
}

// NamesNoted is how many names were noted.
func (s *Shared) NamesNoted() uint64 { return s.names.noted.Load() }

// NameFrom returns the first name from number i on that is still there, and its number. The last maxNames-1 are.
func (s *Shared) NameFrom(i uint64) (uint64, Name) {
	noted := s.NamesNoted()
	i = max(i, noted-min(noted, maxNames-1))
	at := &s.names.ring[i%maxNames]
	return i, Name{at.dir.Load(), getText(at.name[:])}
}
