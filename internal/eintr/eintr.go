// Package eintr retries system calls that a signal interrupted.
package eintr

import (
	"time"

	"golang.org/x/sys/unix"
)

// Limit is how long Retry keeps retrying after the first interruption. Even if a file system
// interrupts every call, the goroutine that serves a request thus ends soon after the request was
// answered.
const Limit = 10 * time.Second

// Retry calls f again, after a pause, while it returns EINTR, for up to Limit, and returns its last
// error. Network and FUSE file systems interrupt calls that are never interrupted on a local disk,
// such as stat, even though the Go runtime installs its signal handlers with SA_RESTART.
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
