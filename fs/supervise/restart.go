package supervise

import "errors"

// restart begins to replace the worker on purpose, unless that is under way: whoever asked waits for the same outcome then.
func (s *supervisor) restart() error {
	if s.next != nil && s.next.reload {
		return nil
	}
	if !s.ending.IsZero() {
		s.refuse(errors.New("the mount is ending: it was told to stop, and waits for files that are still open"))
		return nil
	}
	if s.Connection != nil && !s.resends() {
		s.refuse(errors.New("the mount was handed over: before Linux 6.9 it would end with its worker"))
		return nil
	}
	next, err := s.start(true)
	if err != nil {
		s.refuse(err)
		return nil
	}
	if s.next != nil {
		s.next.kill()
	}
	s.next = next
	return nil
}

// refuse ends a restart: the same worker serves on.
func (s *supervisor) refuse(err error) {
	s.Log.Error("restart refused: the same worker keeps serving", "err", err)
	s.tell(err.Error())
}

// tell tells whoever asked for a restart how it ended: why it was refused, or "".
func (s *supervisor) tell(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.Restarts.Add(1)
}

// handOver ends the worker and lets the next one serve.
func (s *supervisor) handOver() (err error) {
	old, next := s.worker, s.next
	if old.socket.send(msgGo, nil) == nil {
		old.awaitEnd(leavingLimit)
	}
	old.kill()
	s.drain()
	s.next = nil
	switch {
	case s.gone():
		next.kill()
		return nil
	case !s.resends():
		next.kill() // it has the connection that ends now
		if err = s.remount(); err != nil {
			return err
		}
		err = s.begin(true)
	case s.Snapshot != next.from:
		next.kill() // it began from an older one
		err = s.begin(true)
	default:
		err = s.hand(next)
	}
	switch {
	case isEnd(err):
		return err
	case err != nil:
		s.tell(err.Error())
		return s.replace(err)
	}
	s.restarted()
	s.standBy()
	return nil
}

// restarted tells that the worker that a restart was asked for serves.
func (s *supervisor) restarted() {
	pid := s.worker.cmd.Process.Pid
	s.Log.Info("restarted: a new worker serves", "pid", pid)
	s.Restarted(pid)
	s.tell("")
}
