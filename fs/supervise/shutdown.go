package supervise

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInterrupted is the error of Run if Stop ended the mount before batches could be read. By then,
// Run has unmounted what it mounted.
var ErrInterrupted = errors.New("stopped before batches could be read")

var (
	errStopped   = errors.New("stopped")                 // a user ended the mount
	errUnmounted = errors.New("the mount was unmounted") // the kernel closed the connection
)

func (s *supervisor) isDisconnected() bool {
	poll := []unix.PollFd{{Fd: int32(s.connection.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLERR != 0
}

// stop begins the grace period or, at the second signal, ends the mount.
func (s *supervisor) stop() error {
	if !s.graceEnd.IsZero() {
		s.Log.Warn("second stop signal: not waiting for open files, whose readers get errors")
		return errStopped
	}
	if s.servingSince.IsZero() {
		return errStopped // no file can have been opened yet
	}
	s.Stopping()
	s.graceEnd = time.Now().Add(s.Grace)
	s.shared.Closing.Store(1)
	err := s.tryUnmount()
	if err == nil && !s.mounted.HandedOver {
		s.Log.Warn("files are still open: they can be read until the grace period ends", "grace", s.Grace)
	}
	return err
}

// tryUnmount unmounts unless files are open or the mount was handed over. It returns errStopped if
// the mount is gone or the grace period is over.
func (s *supervisor) tryUnmount() error {
	err := error(unix.EBUSY) // detached and handed-over mounts get the grace period, too
	if !s.mounted.HandedOver {
		if current, _ := s.mounted.Current(); current != nil {
			err = current.Unmount(false)
		}
	}
	switch {
	case err == nil:
		return errStopped
	case !errors.Is(err, unix.EBUSY):
		return err
	case time.Now().Before(s.graceEnd):
		return nil
	case !s.mounted.HandedOver:
		s.Log.Warn("files were still open at the end of the grace period: their readers get errors")
	}
	return errStopped
}
