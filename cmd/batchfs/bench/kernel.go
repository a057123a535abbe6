package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// warmUp reads a file into the kernel's page cache.
func warmUp(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return err
}

// dropPages removes a file from the page cache, so that it is read from the disk again. Pages that
// some process has mapped stay.
func dropPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// Only pages that were written to the disk can be dropped.
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

func diskBytesRead(pid int) (n int64) {
	io, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, after, _ := strings.Cut(string(io), "\nread_bytes: ")
	fmt.Sscan(after, &n)
	return n
}
