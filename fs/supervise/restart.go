package supervise

import "errors"

// A restart passes through these functions: restart starts a worker that loads the program and the
// configuration anew. Once it is prepared, switchToStandby ends the old worker and promotes the new
// one, and recordServing ends the restart. If anything goes wrong before that, rejectRestart leaves
// the old worker in place.

// restart starts the worker of a restart. A second request during a restart shares its outcome.
func (s *supervisor) restart() {
	var next *workerProcess
	var err error
	switch {
	case s.standby != nil && s.standby.isRestart:
		return
	case !s.graceEnd.IsZero():
		err = errors.New("the mount is ending, and waits only for its open files to be closed")
	case s.Connection != nil && !s.kernelResends():
		err = errors.New("the mount was handed over, and before Linux 6.9 it ends with its worker")
	default:
		next, err = s.startProcess(true)
	}
	if err != nil {
		s.rejectRestart(err)
		return
	}
	if s.standby != nil {
		s.standby.kill()
	}
	s.standby = next
}

// rejectRestart ends a restart without replacing the worker.
func (s *supervisor) rejectRestart(err error) {
	s.Log.Error("restart rejected: the current worker keeps serving", "err", err)
	s.endRestart(err.Error())
}

// endRestart tells the waiting command why the restart was rejected, or "" if it succeeded.
func (s *supervisor) endRestart(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.Restarts.Add(1)
}

// switchToStandby replaces the worker with the standby, which belongs to a restart.
func (s *supervisor) switchToStandby() error {
	if s.worker.send(msgLeave) == nil {
		s.worker.awaitEnd(leavingLimit)
	}
	s.worker.kill()
	s.drainSnapshots()
	// If the kernel does not resend, the standby's connection ends now. The standby's snapshot may
	// be outdated, too.
	if next := s.standby; !s.kernelResends() || s.Snapshot != next.snapshot {
		next.kill()
		s.standby = nil
	}
	return s.appointWorker(true)
}
