package state

// NoteName notes a name that was looked up, for a successor to have the kernel forget. The caller serialises calls.
func (s *Shared) NoteName(n Name) {
	at := &s.names.ring[s.names.noted.Load()%maxNames]
	at.dir.Store(n.Dir)
	setText(at.name[:], n.Name)
	s.names.noted.Add(1)
}

// Names returns the last maxNames-1 names at most, oldest first, also those that the kernel has forgotten since.
func (s *Shared) Names() (list []Name) {
	noted := s.names.noted.Load()
	for i := noted - min(noted, maxNames-1); i < noted; i++ {
		at := &s.names.ring[i%maxNames]
		list = append(list, Name{at.dir.Load(), getText(at.name[:])})
	}
	return list
}
