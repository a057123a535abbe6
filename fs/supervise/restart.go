package supervise

import "errors"

// A restart passes through these functions: restart starts a worker that loads the program and the
// configuration anew. Once it is prepared, switchToNext ends the old worker and promotes the new
// one, and recordServing ends the restart. If the new worker fails before switchToNext,
// rejectRestart leaves the old one in place. If the new worker fails later, or the old one fails
// during the restart, failRestart leaves the old program and snapshot to another worker.

// restart starts the worker of a restart. A second request during a restart shares its outcome.
func (s *supervisor) restart() {
	var p *workerProcess
	var err error
	switch {
	case s.next != nil && s.next.isRestart:
		return
	case !s.graceEnd.IsZero():
		err = errors.New("the mount is ending, and waits only for its open files to be closed")
	case s.Connection != nil && !s.kernelResends():
		err = errors.New("the mount was handed over, and before Linux 6.9 it ends with its worker")
	default:
		p, err = s.startProcess(true)
	}
	if err != nil {
		s.rejectRestart(err)
		return
	}
	if s.next != nil {
		s.next.kill()
	}
	s.next = p
}

// rejectRestart ends a restart without replacing the worker.
func (s *supervisor) rejectRestart(err error) {
	s.Log.Error("restart rejected: the current worker keeps serving", "err", err)
	s.endRestart(err.Error())
}

// failRestart ends a restart after which neither the old worker nor the new one is left.
func (s *supervisor) failRestart(err error) {
	s.Log.Error("restart rejected: another worker takes over with the old program and configuration", "err", err)
	s.endRestart(err.Error())
}

// endRestart tells the waiting command why the restart was rejected, or "" if it succeeded.
func (s *supervisor) endRestart(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.Restarts.Add(1)
}

// switchToNext replaces the worker with the new one of a restart.
func (s *supervisor) switchToNext() error {
	if s.worker.send(msgLeave) == nil {
		s.worker.awaitEnd(leavingLimit)
	}
	s.worker.kill()
	s.drainSnapshots()
	// If the kernel does not resend, the new worker's connection ends now. Its snapshot may be
	// outdated, too.
	if !s.kernelResends() || s.Snapshot != s.next.snapshot {
		s.next.kill()
		s.next = nil
	}
	return s.appointWorker(true)
}
