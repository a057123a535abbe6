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

func (s *supervisor) handOver() error {
	old, next := s.worker, s.next
	if old.socket.send(msgLeave, nil) == nil {
		old.awaitEnd(leavingLimit)
	}
	old.kill()
	s.drain()
	s.next = nil
	var err error
	if s.resends() && s.Snapshot == next.from {
		err = s.promote(next)
	} else { // it has a connection that ends now, or an older snapshot
		next.kill()
		if !s.resends() {
			if err := s.remount(); err != nil {
				return err
			}
		}
		err = s.begin(true)
	}
	if isEnd(err) {
		return err
	} else if err != nil {
		s.endRestart(err.Error())
		return s.replace(err)
	}
	pid := s.worker.cmd.Process.Pid
	s.Log.Info("restarted: a new worker serves", "pid", pid)
	s.Restarted(pid)
	s.endRestart("")
	s.standBy()
	return nil
}
