package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// warmUp gives posix_fadvise advice, and reads a file into the kernel's page cache.
func warmUp(path string, advice int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, advice); err != nil {
		return err
	}
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

func pageCacheBytes(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(mapping)
	page := os.Getpagesize()
	resident := make([]byte, (len(mapping)+page-1)/page)
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(len(mapping)), uintptr(unsafe.Pointer(&resident[0]))); e != 0 {
		return 0, e
	}
	var n int64
	for _, r := range resident {
		n += int64(r & 1)
	}
	return n * int64(page), nil
}

// A usage is the memory of a process in bytes, from /proc/PID/status.
type usage struct {
	Resident int64 `json:"rss"`
	RssAnon  int64 `json:"rss_anon"`
	RssFile  int64 `json:"rss_file"`
	RssShmem int64 `json:"rss_shmem"` // includes mapped files on tmpfs
}

func usageOf(pid int) (u usage, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	kib := map[string]*int64{"VmRSS": &u.Resident, "RssAnon": &u.RssAnon, "RssFile": &u.RssFile, "RssShmem": &u.RssShmem}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if field, ok := kib[key]; ok {
			fmt.Sscan(value, field)
			*field <<= 10
		}
	}
	return u, err
}

func diskBytesRead(pid int) (n int64) {
	io, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, after, _ := strings.Cut(string(io), "\nread_bytes: ")
	fmt.Sscan(after, &n)
	return n
}
