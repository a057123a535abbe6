package supervise

import "os"

// standBy starts a worker that stands by, because starting one takes long while readers keep every processor busy.
func (s *supervisor) standBy() {
	if s.next != nil || !s.ending.IsZero() || !s.resends() {
		return
	}
	next, err := s.start(false)
	if err != nil {
		s.tellAlone(err)
		return
	}
	s.next = next
}

// tellAlone logs that no process can be made to stand by, once until one does.
func (s *supervisor) tellAlone(err error) {
	if !s.alone {
		s.Log.Warn("no process stands by, so replacing a worker takes longer: the machine starts none, or it ends at once", "err", err)
	}
	s.alone = true
}

// receivedNext handles a message of the process that stands by, or that a restart started.
func (s *supervisor) receivedNext(m message) error {
	switch {
	case m.text == msgSnapshot:
		s.next.published = m.file
	case m.text == msgPrepared && s.next.reload:
		return s.handOver()
	case m.text == msgPrepared:
		s.next.prepared = true
		if s.alone {
			s.alone = false
			s.Log.Info("a process stands by again")
		}
	default:
		s.drop(s.next.failure(m))
	}
	return nil
}

// drop ends the process that was to replace the worker.
func (s *supervisor) drop(why error) {
	next := s.next
	s.next = nil
	next.kill()
	switch {
	case next.reload:
		s.refuse(why)
	case next.prepared:
		s.Log.Debug("no process stands by for a moment", "err", why)
	default:
		s.tellAlone(why)
	}
}

// keepSnapshot keeps the snapshot that the next worker begins from. The one that stands by began from an older one.
func (s *supervisor) keepSnapshot(file *os.File) {
	s.Snapshot.Close()
	s.Snapshot = file
	if s.next != nil && !s.next.reload {
		s.next.kill()
		s.next = nil
	}
}
