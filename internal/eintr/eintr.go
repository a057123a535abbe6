// Package eintr retries system calls that a signal interrupted.
package eintr

import (
	"time"

	"golang.org/x/sys/unix"
)

// Limit is how long Retry repeats a call. Even if a file system interrupts every call, a request's
// goroutine ends soon after the request has timed out.
const Limit = 10 * time.Second

// Retry calls f, with pauses, until it returns anything but EINTR or Limit has passed, and returns
// its last error. Although Go installs its signal handlers with SA_RESTART, network and FUSE file
// systems interrupt calls, such as stat, that are never interrupted on a local disk.
func Retry(f func() error) error {
	err := f()
	if err != unix.EINTR {
		return err
	}
	pause := 10 * time.Microsecond
	for began := time.Now(); err == unix.EINTR && time.Since(began) < Limit; err = f() {
		time.Sleep(pause)
		pause = min(2*pause, 10*time.Millisecond)
	}
	return err
}
