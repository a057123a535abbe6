package localfile

import (
	"time"

	"golang.org/x/sys/unix"
)

// retryLimit is how long Retry repeats a call. Even if a file system interrupts every call, a
// request's goroutine ends soon after the request has timed out.
const retryLimit = 10 * time.Second

// Retry calls f, with pauses, until it returns anything but EINTR or retryLimit has passed, and
// returns its last error. Although Go installs its signal handlers with SA_RESTART, network and
// FUSE file systems interrupt calls, such as stat, that are never interrupted on a local disk.
func Retry(f func() error) error {
	err := f()
	if err != unix.EINTR {
		return err
	}
	pause := 10 * time.Microsecond
	for began := time.Now(); err == unix.EINTR && time.Since(began) < retryLimit; err = f() {
		time.Sleep(pause)
		pause = min(2*pause, 10*time.Millisecond)
	}
	return err
}
