package cache

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A file is a Blob on the local machine: a regular file of any filesystem.
type file struct {
	name          string // the path and a zero byte, for system calls, because adding it in each read would allocate
	id            Identity
	access        Access
	dropPageCache bool

	mu   sync.Mutex // guards kept, and is held while the first read makes it; no other lock is taken under it
	kept *mapping   // of the accesses that keep one
}

// newFile returns the file that had identity id when it was opened earlier. It makes no system call.
func newFile(path string, id Identity, access Access, dropPageCache bool) (*file, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return nil, fmt.Errorf("%q: %w", path, unix.EINVAL)
	}
	return &file{name: path + "\x00", id: id, access: access, dropPageCache: dropPageCache}, nil
}

// openFlags have O_NONBLOCK because opening a named pipe would otherwise wait for its writer.
const openFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK

// openFile opens a regular file and returns its identity. The content is that of the open file; the caller closes it.
//
// previous is the identity of the file at this path when it was opened last, nil for the first time. openFile refuses a file
// that is being overwritten in place: its modification time is that of the beginning of the write, so a read before the end
// could mix old and new bytes.
func openFile(path string, previous *Identity) (id Identity, _ content, err error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return id, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	switch {
	case err != nil:
		return id, nil, err
	case info.IsDir():
		return id, nil, fmt.Errorf("%s is a directory, not a token file; name the files in it, e.g. %s/*.bin", path, path)
	case !info.Mode().IsRegular():
		return id, nil, fmt.Errorf("%s is not a regular file, and only those can be read at any position", path)
	}
	var busy error
	if previous != nil {
		// A lease is refused while somebody has the file open for writing, and while it is held nobody opens it for that.
		// It takes the file's owner or CAP_LEASE, and a filesystem that has leases.
		_, busy = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	}
	id, err = identify(int(f.Fd()))
	if previous != nil && busy == nil {
		unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	switch {
	case err != nil:
		return id, nil, &os.PathError{Op: "stat", Path: path, Err: err}
	case busy == unix.EAGAIN && previous.overwrittenBy(id):
		return id, nil, fmt.Errorf("%s is being overwritten: a process has it open for writing", path)
	}
	return id, f, nil
}

// identify is the identity of an open file.
func identify(fd int) (Identity, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return Identity{uint64(st.Dev), st.Ino, st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}, err
}

func (f *file) Path() string { return f.name[:len(f.name)-1] }

func (f *file) Identity() Identity { return f.id }

// cpath is the path as system calls take it.
func (f *file) cpath() unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(f.name)) }

// failed is the error of an operation on the file.
func (f *file) failed(op string, err error) error {
	return &os.PathError{Op: op, Path: f.Path(), Err: err}
}

func (f *file) Check() error {
	var st unix.Statx_t
	cwd := unix.AT_FDCWD
	const mask = unix.STATX_INO | unix.STATX_SIZE | unix.STATX_MTIME
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(cwd), uintptr(f.cpath()), 0, mask, uintptr(unsafe.Pointer(&st)), 0)
	if errno != 0 {
		return f.failed("stat", errno)
	}
	return compare(f.Path(), f.id, Identity{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, int64(st.Size), st.Mtime.Sec, int64(st.Mtime.Nsec)})
}

// open opens the file again and checks that it is the one that was opened first.
func (f *file) open() (fd int, err error) {
	cwd, errno := unix.AT_FDCWD, unix.EINTR
	for errno == unix.EINTR {
		var n uintptr
		n, _, errno = unix.Syscall6(unix.SYS_OPENAT, uintptr(cwd), uintptr(f.cpath()), openFlags, 0, 0, 0)
		fd = int(n)
	}
	if errno != 0 {
		return -1, f.failed("open", errno)
	}
	if err := f.unchanged(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// unchanged is called before a read and after it, so that no read mixes two contents of the file.
func (f *file) unchanged(fd int) error {
	now, err := identify(fd)
	if err != nil {
		return f.failed("stat", err)
	}
	return compare(f.Path(), f.id, now)
}

// explain returns why a read failed: err, unless the file changed meanwhile, which then explains it.
func (f *file) explain(err error, fd int) error {
	if changed := f.unchanged(fd); changed != nil {
		return changed
	}
	return err
}

func (f *file) Read(ranges []Range, visit func(int, []byte) error) error {
	switch f.access {
	case Pread:
		return f.readPread(ranges, visit)
	case Remap:
		return f.readRemap(ranges, visit)
	}
	return f.readKept(ranges, visit)
}

// buffers are *[]byte, the bytes of one range under Pread.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// readPread reads each range with a system call.
func (f *file) readPread(ranges []Range, visit func(int, []byte) error) error {
	fd, err := f.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The ranges are far apart, so reading ahead would be for nothing.
	unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	flags := unix.RWF_NOWAIT
	for i, r := range ranges {
		size := r.To - r.From
		if int64(cap(*buffer)) < size {
			*buffer = make([]byte, size)
		}
		raw := (*buffer)[:size]
		n, err := pread(fd, raw, r.From, flags)
		if flags != 0 && int64(n) < size {
			// The page cache lacks some of this range, and so probably some of the others.
			willNeed(fd, ranges[i:])
			flags = 0
			_, err = pread(fd, raw, r.From, flags)
		}
		if err != nil {
			return f.explain(f.failed("read", err), fd)
		}
		if err := visit(r.Index, raw); err != nil {
			return f.explain(err, fd)
		}
		f.dropPages(fd, r)
	}
	return f.unchanged(fd)
}

// pread fills buf, or with RWF_NOWAIT as much of it as the page cache has. It returns how many bytes it read.
func pread(fd int, buf []byte, off int64, flags int) (n int, err error) {
	for n < len(buf) {
		iov := unix.Iovec{Base: &buf[n]}
		iov.SetLen(len(buf) - n)
		at := off + int64(n)
		// unix.Preadv2 would allocate.
		got, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(at), uintptr(at>>32), uintptr(flags))
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return n, errno
		case got == 0:
			return n, io.ErrUnexpectedEOF
		}
		n += int(got)
	}
	return n, nil
}

// readRemap maps the pages of the ranges and nothing else: a page fault in a mapping of the whole file would also map the
// cached pages around it, to no use.
func (f *file) readRemap(ranges []Range, visit func(int, []byte) error) error {
	fd, err := f.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	willNeed(fd, ranges)
	var size int64
	for _, r := range ranges {
		from, to := r.pages()
		size += to - from
	}
	if size*faultAround > f.id.Size {
		err = f.visitWhole(fd, ranges, visit)
	} else {
		err = f.visitSideBySide(fd, uintptr(size), ranges, visit)
	}
	if err != nil {
		return f.explain(err, fd)
	}
	for _, r := range ranges { // after the unmapping: pages that are mapped stay in the cache
		f.dropPages(fd, r)
	}
	return f.unchanged(fd)
}

// faultAround is how many pages a page fault maps if they are in the page cache (fault_around_bytes of the kernel). In a file
// where the ranges lie that close to each other, those pages are of use.
const faultAround = 16

// adviseNew tells the kernel not to read ahead in a new mapping, and to leave it out of core dumps.
func adviseNew(mapping []byte) {
	unix.Madvise(mapping, unix.MADV_RANDOM)
	unix.Madvise(mapping, unix.MADV_DONTDUMP)
}

// visitWhole visits ranges in one mapping of the whole file.
func (f *file) visitWhole(fd int, ranges []Range, visit func(int, []byte) error) error {
	// unix.Mmap would keep a table of mappings under a lock.
	first, err := unix.MmapPtr(fd, 0, nil, uintptr(f.id.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return f.failed("mmap", err)
	}
	defer unix.MunmapPtr(first, uintptr(f.id.Size))
	mapping := unsafe.Slice((*byte)(first), f.id.Size)
	adviseNew(mapping)
	for _, r := range ranges {
		if err := f.visitMapped(mapping, 0, r, visit); err != nil {
			return err
		}
	}
	return nil
}

// visitSideBySide visits ranges whose pages, of size bytes in all, are mapped side by side, so that one munmap (one TLB
// shootdown) ends them all.
func (f *file) visitSideBySide(fd int, size uintptr, ranges []Range, visit func(int, []byte) error) error {
	first, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return f.failed("mmap", err)
	}
	defer unix.MunmapPtr(first, size)
	next := first
	for _, r := range ranges {
		from, to := r.pages()
		if _, err := unix.MmapPtr(fd, from, next, uintptr(to-from), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			return f.failed("mmap", err)
		}
		next = unsafe.Add(next, to-from)
	}
	adviseNew(unsafe.Slice((*byte)(first), size))
	next = first
	for _, r := range ranges {
		from, to := r.pages()
		if err := f.visitMapped(unsafe.Slice((*byte)(next), to-from), from, r, visit); err != nil {
			return err
		}
		next = unsafe.Add(next, to-from)
	}
	return nil
}

var errFault = errors.New("the mapped file cannot be read there (truncated meanwhile, or an input/output error)")

// visitMapped calls visit with a range of a mapping, which begins at byte first of the file. A page that cannot be had (the
// file was truncated, the disk failed) raises SIGBUS, which becomes an error here; a fault anywhere else stays a panic.
func (f *file) visitMapped(mapping []byte, first int64, r Range, visit func(int, []byte) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		at := uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))
		if !ok || fault.Addr() < at || fault.Addr() >= at+uintptr(len(mapping)) {
			panic(r)
		}
		err = fmt.Errorf("%s: byte %d: %w", f.Path(), first+int64(fault.Addr()-at), errFault)
	}()
	from, to := r.pages()
	// A system call makes only its caller wait for the disk (from Linux 5.14 on). During a page fault Go runs little else, and
	// nothing at all once it wants to collect garbage.
	unix.Madvise(mapping[from-first:min(to-first, int64(len(mapping)))], unix.MADV_POPULATE_READ)
	return visit(r.Index, mapping[r.From-first:r.To-first])
}

// readKept reads through a mapping that stays.
func (f *file) readKept(ranges []Range, visit func(int, []byte) error) error {
	m, err := f.keepMapping()
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(m)
	if err := f.Check(); err != nil {
		return err
	}
	for _, r := range ranges { // so that a disk reads many at once
		from, to := r.pages()
		unix.Madvise(m.bytes[from:min(to, int64(len(m.bytes)))], unix.MADV_WILLNEED)
	}
	for i := 0; i < len(ranges) && err == nil; i++ {
		err = f.visitMapped(m.bytes, 0, ranges[i], visit)
	}
	if f.access == Advise {
		for _, r := range ranges {
			unix.Madvise(m.around(r), unix.MADV_DONTNEED)
			f.dropPages(m.fd, r)
		}
	}
	if changed := f.Check(); changed != nil {
		return changed
	}
	return err
}

// A mapping of a whole file stays until nobody reads through it any more.
type mapping struct {
	bytes []byte
	fd    int // open only under Advise with dropPageCache
}

// around is the part of the mapping that a page fault in r may have mapped: the kernel also maps cached pages next to the one
// asked for, and whole large folios, but never more than one page table holds. A kernel that gets all of a page table back
// (6.14 and later) frees that too.
func (m *mapping) around(r Range) []byte {
	page := int64(os.Getpagesize())
	table := page * page / 8
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))))
	from := (first+r.From)&^(table-1) - first
	to := (first+r.To+table-1)&^(table-1) - first
	return m.bytes[max(from, 0):min(to, int64(len(m.bytes)))]
}

// keepMapping maps the file at its first read.
func (f *file) keepMapping() (*mapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept != nil {
		return f.kept, nil
	}
	fd, err := f.open()
	if err != nil {
		return nil, err
	}
	m := &mapping{fd: fd}
	if m.bytes, err = unix.Mmap(fd, 0, int(f.id.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		unix.Close(fd)
		return nil, f.failed("mmap", err)
	}
	adviseNew(m.bytes)
	// Reads that are under way hold the mapping, so there is no moment to unmap at but the collector's.
	runtime.AddCleanup(m, func(b []byte) { unix.Munmap(b) }, m.bytes)
	if f.access == Advise && f.dropPageCache {
		runtime.AddCleanup(m, func(fd int) { unix.Close(fd) }, fd)
	} else if err := unix.Close(fd); err != nil {
		return nil, err
	}
	f.kept = m
	return m, nil
}

// Release lets go of the mapping, which keeps the space of a deleted file taken.
func (f *file) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = nil
}

// willNeed has the disk read at once what the page cache lacks of the ranges, before they are read one after the other.
func willNeed(fd int, ranges []Range) {
	for _, r := range ranges {
		unix.Fadvise(fd, r.From, r.To-r.From, unix.FADV_WILLNEED)
	}
}

// dropPages gives the kernel's page cache of a range back, if that is wanted.
func (f *file) dropPages(fd int, r Range) {
	if f.dropPageCache {
		from, to := r.pages()
		unix.Fadvise(fd, from, to-from, unix.FADV_DONTNEED)
	}
}

// pages is the range widened to whole pages.
func (r Range) pages() (from, to int64) {
	page := int64(os.Getpagesize())
	return r.From &^ (page - 1), (r.To + page - 1) &^ (page - 1)
}
