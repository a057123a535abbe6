package supervise

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInterrupted is returned by Run if Stop ended the mount before batches could be read. By then,
// Run has unmounted what it mounted.
var ErrInterrupted = errors.New("told to stop before it served")

var (
	errStopped = errors.New("told to stop")     // the mount ends because a user asked for that
	errOver    = errors.New("it was unmounted") // the kernel has closed the connection
)

// isGone says whether the kernel has closed the connection.
func (s *supervisor) isGone() bool {
	poll := []unix.PollFd{{Fd: int32(s.connection.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLERR != 0
}

func (s *supervisor) stop() error {
	if !s.ending.IsZero() {
		s.Log.Warn("told to stop again: readers get errors")
		return errStopped
	}
	if s.servingSince.IsZero() {
		return errStopped // no file can have been opened yet
	}
	s.Stopping()
	s.ending = time.Now().Add(s.Grace)
	s.shared.Closing.Store(1)
	err := s.tryToEnd()
	if err == nil && s.Connection == nil {
		s.Log.Warn("files are still open: they may be read on for a while", "grace", s.Grace)
	}
	return err
}

// tryToEnd unmounts unless files are open. The process that made a mount that was handed over unmounts it.
func (s *supervisor) tryToEnd() error {
	err := error(unix.EBUSY) // a mount that was detached counts as busy, so its readers get the grace period too
	if s.Connection == nil {
		if now, _ := s.mounted.Refresh(); now != nil {
			err = now.Unmount(false)
		}
	}
	switch {
	case err == nil:
		return errStopped
	case !errors.Is(err, unix.EBUSY):
		return err
	case time.Now().Before(s.ending):
		return nil
	case s.Connection == nil:
		s.Log.Warn("files were still open at the end of the grace period: their readers get errors")
	}
	return errStopped
}
