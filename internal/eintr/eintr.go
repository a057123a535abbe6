// Package eintr retries system calls that a signal interrupted.
package eintr

import (
	"time"

	"golang.org/x/sys/unix"
)

// Limit is how long Retry keeps retrying after the first interruption. It ensures that the
// goroutine of a request ends soon after the request was answered, even if a file system interrupts
// every call.
const Limit = 10 * time.Second

// Retry calls f, with pauses, until it returns anything but EINTR or Limit has passed, and returns
// its last error. Network and FUSE file systems interrupt calls that are never interrupted on a
// local disk, such as stat, even though the Go runtime installs its signal handlers with
// SA_RESTART.
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
