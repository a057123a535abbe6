package supervise

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

var (
	errStopped = errors.New("told to stop")     // the mount ends because a user asked for that
	errOver    = errors.New("it was unmounted") // the kernel has closed the connection
)

func isEnd(err error) bool { return errors.Is(err, errStopped) || errors.Is(err, errOver) }

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
	s.Stopping()
	s.ending = time.Now().Add(s.Grace)
	s.shared.Closing.Store(1)
	err := s.tryToEnd()
	if err == nil && !s.isUnmounted && s.Connection == nil {
		s.Log.Warn("files are still open: they may be read on for a while", "grace", s.Grace)
	}
	return err
}

func (s *supervisor) tryToEnd() error {
	if s.Connection != nil { // the process that mounted ends the wait earlier, by unmounting
		if time.Now().Before(s.ending) {
			return nil
		}
		return errStopped
	}
	err := error(unix.EBUSY) // a mount that was detached counts as busy, so its readers get the grace period too
	if now, _ := s.mounted.Now(); now != nil {
		err = now.Unmount(false)
	}
	switch {
	case err == nil:
		s.isUnmounted = true
		s.ending = time.Now().Add(leavingLimit)
	case !errors.Is(err, unix.EBUSY):
		return err
	case !time.Now().Before(s.ending):
		if !s.isUnmounted {
			s.Log.Warn("files were still open at the end of the grace period: their readers get errors")
		}
		return errStopped
	}
	return nil
}

// detach unmounts, also under open files, unless another filesystem is mounted over this one.
func (s *supervisor) detach() error {
	if err := s.mounted.Unmount(true); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}
