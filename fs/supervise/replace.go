package supervise

import (
	"errors"
	"fmt"
	"time"
)

// replace lets another worker serve instead of one that ended or should end, unless the mount is gone. why is for the log; nil
// stands for how the worker ended. What the machine does to workers is no reason to give up: it is tried until it works.
func (s *supervisor) replace(why error) error {
	began := time.Now()
	s.worker.kill()
	if why == nil {
		if why = errors.New(s.worker.howEnded()); s.worker.isMachines() {
			why = machineError{why}
		} else {
			s.shared.Crashes.Add(1)
		}
	}
	s.drain()
	if s.next != nil && s.next.reload {
		s.drop(errors.New("the worker ended meanwhile; try again"))
	}
	if s.shared.Answered.Load() != s.answered || time.Since(s.began) > settled {
		s.attempts, s.failures, s.told = 0, 0, false
	}
	failed := why
	for reload := false; ; {
		if s.attempts++; !errors.As(failed, new(machineError)) && !reload {
			if s.failures++; s.failures > maxFailures {
				return fmt.Errorf("%d processes in a row ended before they had answered a request; the last one: %w", maxFailures, failed)
			}
		}
		var err error
		if reload, err = s.pause(); err != nil {
			return err
		}
		if !s.resends() {
			if err := s.remount(); err != nil {
				return err
			}
		}
		switch failed = s.begin(reload); {
		case failed == nil:
			s.Log.Warn("the worker ended: another goes on", "why", why, "after", time.Since(began), "attempts", s.attempts,
				"pid", s.worker.cmd.Process.Pid)
			if reload {
				s.restarted()
			}
			s.standBy()
			return nil
		case isEnd(failed):
			return failed
		case reload:
			s.tell(failed.Error())
		}
		if errors.As(failed, new(machineError)) && !s.told {
			s.told = true
			s.Log.Error("no worker serves, and the machine starts none or kills it: readers wait, and it is tried until one serves", "err", failed)
		}
	}
}

// pause waits between two attempts to have a worker serve. It ends early, and returns true, if a restart is asked for.
func (s *supervisor) pause() (restart bool, err error) {
	over := time.Now()
	if n := s.attempts - 2; n >= 0 {
		over = over.Add(min(backOff<<min(n, 10), maxBackOff))
	}
	for {
		if err := s.attend(); err != nil {
			return false, err
		}
		left := time.Until(over)
		if left <= 0 {
			return false, nil
		}
		select {
		case <-s.Restart:
			return true, nil
		case <-time.After(min(left, lookEvery)):
		}
	}
}

// attend does what run does, as far as it needs no worker. The error isEnd at the end of the mount.
func (s *supervisor) attend() error {
	select {
	case <-s.Stop:
		if err := s.end(); err != nil {
			return err
		}
	default:
	}
	switch {
	case s.gone():
		return errOver
	case !s.ending.IsZero():
		return s.tryToEnd()
	}
	return nil
}

// drain keeps the last snapshot that the worker published before it ended.
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
		return errStopped // somebody unmounted it under its readers
	}
	if err := now.Unmount(true); err != nil {
		return err
	}
	s.mountpoint = now.Mountpoint // which may have been moved
	s.shared.NewConnection()
	return s.mount()
}
