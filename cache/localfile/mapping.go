package localfile

import (
	"errors"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/internal/process"
)

const (
	// rangesPerMapping limits the ranges that are mapped at a time. A page fault may map up to
	// faultAround bytes around it (the kernel's fault_around_bytes), so each range keeps less than
	// 2*faultAround bytes resident besides its own.
	rangesPerMapping = 256
	faultAround      = 64 << 10
	// maxCopied is the largest range whose pages are copied, in bytes. Copying such a range is
	// cheaper than also mapping the pages around it, unless ranges lie so close together that those
	// pages are needed too.
	maxCopied = 8 << 10
)

// visitWhole maps the whole file once and visits ranges of it. The mapping is private, so that a
// write fault (MADV_POPULATE_WRITE) copies one page and maps none around it.
func (f *File) visitWhole(fd int, ranges []Range, visit func(int, []byte) error) error {
	populateOne := unix.MADV_POPULATE_WRITE
	mapping, err := f.mmap(fd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err == unmappedError(unix.ENOMEM) {
		// If the kernel may not overcommit memory, it reserves all that could be written.
		populateOne = unix.MADV_POPULATE_READ
		mapping, err = f.mmap(fd, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return err
	}
	defer munmap(mapping)
	sparse := int64(len(ranges))*faultAround < f.size
	for _, r := range ranges {
		populate := unix.MADV_POPULATE_READ
		if from, to := r.pages(); sparse && to-from <= maxCopied {
			populate = populateOne
		}
		if err := f.visitMapped(mapping, fd, r, populate, visit); err != nil {
			return err
		}
	}
	return nil
}

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

// visitMapped maps the pages of a range with madvise(2), using the advice populate, and visits the
// range. If a page cannot be mapped, perhaps only because the file system interrupted the page
// fault, it reads the range with pread from fd, or from the path if fd is -1. The caller must check
// afterwards that the file has not changed.
func (f *File) visitMapped(mapping []byte, fd int, r Range, populate int, visit func(int, []byte) error) error {
	err := f.visitPages(mapping, r, populate, visit)
	if err != errFault {
		return err
	}
	if fd < 0 {
		if fd, err = f.openUnchanged(); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	return f.visitCopies(fd, []Range{r}, visit)
}

var errFault = errors.New("a page of the file cannot be mapped")

// visitPages is visitMapped without the fallback to pread. Touching a page that cannot be mapped,
// because the file was truncated or the disk failed, raises SIGBUS; visitPages then returns
// errFault. A fault at any other address remains a panic.
func (f *File) visitPages(mapping []byte, r Range, populate int, visit func(int, []byte) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		fault, ok := p.(interface{ Addr() uintptr })
		start := uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))
		if !ok || fault.Addr() < start || fault.Addr() >= start+uintptr(len(mapping)) {
			panic(p)
		}
		err = errFault
	}()
	from, to := r.pages()
	// Since Linux 5.14, this call waits for the disk and blocks only its own thread. During a page
	// fault, Go runs little else, and nothing at all once it needs to collect garbage.
	unix.Madvise(mapping[from:min(to, int64(len(mapping)))], populate)
	return visit(r.Index, mapping[r.From:r.To])
}
