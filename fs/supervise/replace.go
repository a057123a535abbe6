package supervise

import (
	"errors"
	"fmt"
	"time"

	"batchfs/fs/mount"
)

// replace promotes another worker in place of one that ended or should end. why is for the log; nil stands for how the worker ended.
// What the machine does to workers is no reason to give up.
func (s *supervisor) replace(why error) error {
	began := time.Now()
	why = s.endWorker(why)
	for failed := why; ; {
		if err := s.awaitAttempt(failed); err != nil {
			return err
		}
		failed = s.begin(false)
		switch {
		case failed == nil:
			s.Log.Warn("the worker ended: another goes on", "why", why, "after", time.Since(began), "attempts", s.attempts,
				"pid", s.worker.cmd.Process.Pid)
			s.standBy()
			return nil
		case isEnd(failed):
			return failed
		case errors.As(failed, new(machineError)) && !s.isTold:
			s.isTold = true
			s.Log.Error("no worker serves, and the machine starts none or kills it: readers wait, and it is tried until one serves", "err", failed)
		}
	}
}

func (s *supervisor) endWorker(why error) error {
	s.worker.kill()
	switch {
	case why != nil:
	case s.worker.isMachines():
		why = machineError{errors.New(s.worker.howEnded())}
	default:
		why = errors.New(s.worker.howEnded())
		s.shared.Crashes.Add(1)
	}
	s.drain()
	if s.next != nil && s.next.isReload {
		s.drop(errors.New("the worker ended meanwhile; try again"))
	}
	if s.shared.Answered.Load() != s.before || time.Since(s.began) > settled {
		s.attempts, s.failures, s.isTold = 0, 0, false
	}
	return why
}

func (s *supervisor) drain() {
	for {
		select {
		case m, ok := <-s.worker.messages:
			if !ok {
				return
			}
			if m.text == msgSnapshot {
				s.keepSnapshot(m.file)
			}
		default:
			return
		}
	}
}

// awaitAttempt waits until another worker may be tried. The error is the end of the mount, or that too many workers have failed.
func (s *supervisor) awaitAttempt(failed error) error {
	if s.attempts++; !errors.As(failed, new(machineError)) {
		if s.failures++; s.failures > maxFailures {
			return fmt.Errorf("%d processes in a row ended before they had answered a request; the last one: %w", maxFailures, failed)
		}
	}
	over := time.Now()
	if n := s.attempts - 2; n >= 0 {
		over = over.Add(min(s.backOff<<min(n, 10), maxBackOff))
	}
	for {
		if err := s.attend(); err != nil {
			return err
		}
		left := time.Until(over)
		if left <= 0 && s.resends() {
			return nil
		} else if left <= 0 {
			return s.remount()
		}
		time.Sleep(min(left, lookEvery))
	}
}

// attend is for waits: it obeys Stop and the end of the mount, which is its error.
func (s *supervisor) attend() error {
	select {
	case <-s.Stop:
		if err := s.stop(); err != nil {
			return err
		}
	default:
	}
	switch {
	case s.isGone():
		return errOver
	case !s.ending.IsZero():
		return s.tryToEnd()
	}
	return nil
}

// remount ends the connection, which gives an error to every reader that waits, and mounts again.
func (s *supervisor) remount() error {
	if s.Connection != nil {
		return errors.New("the mount was handed over, and cannot be made again from here; from Linux 6.9 on, another worker would go on")
	}
	s.connection.Close()
	now, err := s.mounted.Now()
	if err != nil {
		return err
	}
	if now == nil {
		return errStopped // it was unmounted under its readers
	}
	if err := now.Unmount(true); err != nil {
		return err
	}
	s.shared.NewConnection()
	mounted, connection, err := mount.Connect(now.Mountpoint, s.AllowOther) // the directory may have been moved
	if err == nil {
		s.mounted, s.connection = mounted, connection
	}
	return err
}
