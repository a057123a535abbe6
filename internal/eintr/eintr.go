// Package eintr repeats system calls that a signal interrupted.
package eintr

import (
	"time"

	"golang.org/x/sys/unix"
)

// Limit bounds the time that Retry takes after the first interruption, so that the goroutine of a request ends soon after the
// request was answered, even on a file system that interrupts every call.
const Limit = 10 * time.Second

// Retry calls f again while it returns EINTR, for up to Limit, and returns its last error. Network and FUSE file systems interrupt
// calls that never are on a local disk, such as stat, and do so although the Go runtime installs its signal handlers with
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
