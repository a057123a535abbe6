package localfile

import (
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/internal/process"
)

// mapped counts the bytes of all mappings, up to maxMapped in the process. Go ends a process that
// finds no address space for its heap, so if the address space is limited (ulimit -v), half of what
// is left at the first mapping stays free.
var (
	mapped atomic.Int64

	maxMapped = sync.OnceValue(func() int64 {
		var limit unix.Rlimit
		// If Getrlimit fails, limit stays 0.
		unix.Getrlimit(unix.RLIMIT_AS, &limit)
		return (int64(min(limit.Cur, addressSpace)) - process.AddressSpace(os.Getpid())) / 2
	})
)

// addressSpace is that of a process on x86-64, in bytes.
const addressSpace = 1 << 47

// An unmappedError means that a file cannot be mapped: the address space is limited, a sandbox
// forbids it, or the file system does not support it.
type unmappedError unix.Errno

func (e unmappedError) Error() string { return "mmap: " + unix.Errno(e).Error() }

// mmap maps the whole file. The error is an unmappedError.
func (f *File) mmap(fd, prot, flags int) (mapping []byte, err error) {
	if mapped.Add(f.size) > maxMapped() {
		mapped.Add(-f.size)
		return nil, unmappedError(unix.ENOMEM)
	}
	// unix.Mmap would record the mapping in a table guarded by a lock.
	var first unsafe.Pointer
	err = Retry(func() (err error) {
		first, err = unix.MmapPtr(fd, 0, nil, uintptr(f.size), prot, flags)
		return err
	})
	if err != nil {
		mapped.Add(-f.size)
		return nil, unmappedError(err.(unix.Errno))
	}
	mapping = unsafe.Slice((*byte)(first), f.size)
	unix.Madvise(mapping, unix.MADV_RANDOM)   // no readahead, because windows are random
	unix.Madvise(mapping, unix.MADV_DONTDUMP) // not in core dumps
	return mapping, nil
}

func munmap(mapping []byte) {
	mapped.Add(-int64(len(mapping)))
	unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mapping)), uintptr(len(mapping)))
}

var logUnmapped sync.Once

// recordUnmapped counts a read that uses pread because its file could not be mapped, and logs the
// first one.
func (f *File) recordUnmapped(err unmappedError) {
	f.opts.Maps.Unmapped.Add(1)
	logUnmapped.Do(func() {
		f.opts.Log.Warn("a token file cannot be mapped, so it is read with pread, which returns the same bytes; status.json counts such reads",
			"file", f.Path(), "err", error(err))
	})
}
