package supervise

import "errors"

// Of a restart while another one is under way, both get one outcome.
func (s *supervisor) restart() {
	switch {
	case s.next != nil && s.next.isReload:
		return
	case !s.ending.IsZero():
		s.refuse(errors.New("the mount is ending: it was told to stop, and waits for files that are still open"))
		return
	case s.Connection != nil && !s.resends():
		s.refuse(errors.New("the mount was handed over: before Linux 6.9 it would end with its worker"))
		return
	}
	next, err := s.start(true)
	if err != nil {
		s.refuse(err)
		return
	}
	if s.next != nil {
		s.next.kill()
	}
	s.next = next
}

// refuse ends a restart: the same worker serves on.
func (s *supervisor) refuse(err error) {
	s.Log.Error("restart refused: the same worker keeps serving", "err", err)
	s.endRestart(err.Error())
}

// endRestart tells the command that waits why the restart was refused, or "".
func (s *supervisor) endRestart(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.Restarts.Add(1)
}

// handOver ends the worker, and has the one that a restart started serve in its place.
func (s *supervisor) handOver() error {
	if s.worker.send(msgLeave) == nil {
		s.worker.awaitEnd(leavingLimit)
	}
	s.worker.kill()
	s.drain()
	if next := s.next; !s.resends() || s.Snapshot != next.from { // it has a connection that ends now, or an older snapshot
		next.kill()
		s.next = nil
	}
	return s.begin(true)
}
