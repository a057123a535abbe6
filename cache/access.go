package cache

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access is a way to fetch the tokens of a window. They differ in cost and in what stays resident, not in bytes.
type Access string

const (
	// Remap opens, maps, copies and unmaps in every read, as nanoGPT does: what stays resident is bounded by one read.
	Remap Access = "remap"
	// Advise keeps a mapping and gives back the pages that a read touched.
	Advise Access = "advise"
	// Pread opens, reads each window with pread and closes.
	Pread Access = "pread"
	// Map keeps a mapping and gives nothing back: the process grows to the size of the file, which is what it is for.
	Map Access = "map"
)

func (t *Tokens) readShard(s *shard, ws []Window, visit func(Window, []byte) error) error {
	read := t.readMapped
	switch t.Access {
	case Pread:
		read = t.readPread
	case Remap:
		read = t.readRemap
	}
	return t.noting(s, read(s, ws, visit))
}

// readPread reads windows of one shard with a system call each.
func (t *Tokens) readPread(s *shard, ws []Window, visit func(Window, []byte) error) error {
	fd, err := s.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The windows are far apart: what lies around them would be read for nothing.
	unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	scratch := t.pool.Get().(*[]byte)
	defer t.pool.Put(scratch)
	flags := unix.RWF_NOWAIT
	for i, w := range ws {
		from, to := t.bytes(s, w)
		if int64(cap(*scratch)) < to-from {
			*scratch = make([]byte, to-from)
		}
		raw := (*scratch)[:to-from]
		n, err := pread(fd, raw, from, flags)
		if flags != 0 && int64(n) < to-from {
			// The page cache lacks some of it, and so probably of the others.
			t.willNeed(fd, s, ws[i:])
			flags = 0
			_, err = pread(fd, raw, from, flags)
		}
		if err != nil {
			return s.because(&os.PathError{Op: "read", Path: s.path, Err: err}, fd)
		}
		if err := visit(w, raw); err != nil {
			return s.because(err, fd)
		}
		t.dropPages(fd, s, w)
	}
	return s.unchanged(fd)
}

// pread fills buf, or with RWF_NOWAIT as much of it as the page cache has.
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

// readRemap maps the pages of the windows, each by themselves: a fault in a map of the whole file maps the cached pages around
// it too, to no use.
func (t *Tokens) readRemap(s *shard, ws []Window, visit func(Window, []byte) error) error {
	fd, err := s.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	t.willNeed(fd, s, ws)
	var size int64
	for _, w := range ws {
		from, to := t.pages(s, w)
		size += to - from
	}
	if size*pagesAround > s.id.Size {
		err = t.visitWhole(fd, s, ws, visit)
	} else {
		err = t.visitApart(fd, s, uintptr(size), ws, visit)
	}
	if err != nil {
		return s.because(err, fd)
	}
	for _, w := range ws { // after the unmapping: pages that are mapped stay in the cache
		t.dropPages(fd, s, w)
	}
	return s.unchanged(fd)
}

// pagesAround is how many pages a fault maps, if they are in the page cache. Of a file in which the windows lie that close,
// they are of use.
const pagesAround = 16

// adviseNew says of a new mapping that it is read here and there, and that a core dump is to hold none of it.
func adviseNew(mapping []byte) {
	unix.Madvise(mapping, unix.MADV_RANDOM)
	unix.Madvise(mapping, unix.MADV_DONTDUMP)
}

// visitWhole visits windows in a map of the whole file.
func (t *Tokens) visitWhole(fd int, s *shard, ws []Window, visit func(Window, []byte) error) error {
	// unix.Mmap would keep a table of maps under a lock.
	at, err := unix.MmapPtr(fd, 0, nil, uintptr(s.id.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return &os.PathError{Op: "mmap", Path: s.path, Err: err}
	}
	defer unix.MunmapPtr(at, uintptr(s.id.Size))
	mapping := unsafe.Slice((*byte)(at), s.id.Size)
	adviseNew(mapping)
	for _, w := range ws {
		if err := t.visitMapped(s, mapping, 0, w, visit); err != nil {
			return err
		}
	}
	return nil
}

// visitApart visits windows whose pages, of size bytes, are mapped next to each other, to be unmapped at once: that interrupts
// the other processors.
func (t *Tokens) visitApart(fd int, s *shard, size uintptr, ws []Window, visit func(Window, []byte) error) error {
	first, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return &os.PathError{Op: "mmap", Path: s.path, Err: err}
	}
	defer unix.MunmapPtr(first, size)
	next := first
	for _, w := range ws {
		from, to := t.pages(s, w)
		if _, err := unix.MmapPtr(fd, from, next, uintptr(to-from), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			return &os.PathError{Op: "mmap", Path: s.path, Err: err}
		}
		next = unsafe.Add(next, to-from)
	}
	adviseNew(unsafe.Slice((*byte)(first), size))
	next = first
	for _, w := range ws {
		from, to := t.pages(s, w)
		if err := t.visitMapped(s, unsafe.Slice((*byte)(next), to-from), from, w, visit); err != nil {
			return err
		}
		next = unsafe.Add(next, to-from)
	}
	return nil
}

// readMapped reads through a mapping that stays.
func (t *Tokens) readMapped(s *shard, ws []Window, visit func(Window, []byte) error) error {
	m, err := t.keepMapping(s)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(m)
	if err := s.unchangedAtPath(); err != nil {
		return err
	}
	for _, w := range ws { // so that a disk reads many at once
		from, to := t.pages(s, w)
		unix.Madvise(m.bytes[from:min(to, int64(len(m.bytes)))], unix.MADV_WILLNEED)
	}
	for i := 0; i < len(ws) && err == nil; i++ {
		err = t.visitMapped(s, m.bytes, 0, ws[i], visit)
	}
	if t.Access == Advise {
		for _, w := range ws {
			unix.Madvise(m.around(t.bytes(s, w)), unix.MADV_DONTNEED)
			t.dropPages(m.fd, s, w)
		}
	}
	if changed := s.unchangedAtPath(); changed != nil {
		return changed
	}
	return err
}

// A mapping stays until nobody reads through it any more.
type mapping struct {
	bytes []byte
	fd    int // open only if the page cache is to be given back
}

// around is the part of the mapping that a fault in [from, to) may have mapped: the kernel also maps cached pages next to the
// one asked for, and whole large folios, but never more than one page table holds. A kernel that gets all of a page table
// back (6.14 and later) frees that too.
func (m *mapping) around(from, to int64) []byte {
	page := int64(os.Getpagesize())
	table := page * page / 8
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))))
	from = (first+from)&^(table-1) - first
	to = (first+to+table-1)&^(table-1) - first
	return m.bytes[max(from, 0):min(to, int64(len(m.bytes)))]
}

// keepMapping maps the shard at its first read.
func (t *Tokens) keepMapping(s *shard) (*mapping, error) {
	s.keep.Lock()
	defer s.keep.Unlock()
	if s.kept != nil {
		return s.kept, nil
	}
	fd, err := s.open()
	if err != nil {
		return nil, err
	}
	m := &mapping{fd: fd}
	if m.bytes, err = unix.Mmap(fd, 0, int(s.id.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mmap", Path: s.path, Err: err}
	}
	adviseNew(m.bytes)
	// Reads that are under way hold the mapping, so there is no moment to unmap at but the collector's.
	runtime.AddCleanup(m, func(b []byte) { unix.Munmap(b) }, m.bytes)
	if t.Access == Advise && t.DropPageCache {
		runtime.AddCleanup(m, func(fd int) { unix.Close(fd) }, fd)
	} else if err := unix.Close(fd); err != nil {
		return nil, err
	}
	s.kept = m
	return m, nil
}

// Release lets go of the mappings, which keep the space of a deleted file taken. The next read makes them again.
func (t *Tokens) Release() {
	for _, s := range t.shards {
		s.keep.Lock()
		s.kept = nil
		s.keep.Unlock()
	}
}

// willNeed has the disk read windows at once, those that the page cache lacks, before they are read one after the other.
func (t *Tokens) willNeed(fd int, s *shard, ws []Window) {
	for _, w := range ws {
		from, to := t.bytes(s, w)
		unix.Fadvise(fd, from, to-from, unix.FADV_WILLNEED)
	}
}

func (t *Tokens) dropPages(fd int, s *shard, w Window) {
	if t.DropPageCache {
		from, to := t.pages(s, w)
		unix.Fadvise(fd, from, to-from, unix.FADV_DONTNEED)
	}
}

func (s *shard) unchangedAtPath() error {
	var st unix.Statx_t
	cwd := unix.AT_FDCWD
	const mask = unix.STATX_INO | unix.STATX_SIZE | unix.STATX_MTIME
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(cwd), uintptr(unsafe.Pointer(s.cpath)), 0, mask, uintptr(unsafe.Pointer(&st)), 0)
	if errno != 0 {
		return &os.PathError{Op: "stat", Path: s.path, Err: errno}
	}
	return s.same(identity{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, int64(st.Size), st.Mtime.Sec, int64(st.Mtime.Nsec)})
}

var errFault = errors.New("the mapped file cannot be read there (truncated meanwhile, or an input/output error)")

// visitMapped calls visit with a slice of a mapping of the file from byte at on. A page that cannot be had (the file was
// truncated, the disk failed) raises SIGBUS, which is made an error here; a fault anywhere else stays the panic that it is.
func (t *Tokens) visitMapped(s *shard, mapping []byte, at int64, w Window, visit func(Window, []byte) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		first := uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))
		if !ok || fault.Addr() < first || fault.Addr() >= first+uintptr(len(mapping)) {
			panic(r)
		}
		err = fmt.Errorf("%s: byte %d: %w", s.path, at+int64(fault.Addr()-first), errFault)
	}()
	from, to := t.pages(s, w)
	// In a system call only who reads waits (from Linux 5.14 on). While a page fault does, Go runs little else, or nothing
	// once it is to collect garbage.
	unix.Madvise(mapping[from-at:min(to-at, int64(len(mapping)))], unix.MADV_POPULATE_READ)
	from, to = t.bytes(s, w)
	return visit(w, mapping[from-at:to-at])
}
