package state

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
