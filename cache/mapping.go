package cache

import (
	"errors"
	"fmt"
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

func (t *Tokens) readRemap(s *shard, ws []Window, visit func(Window, []byte) error) error {
	fd, err := s.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	mapping, err := s.mmap(fd)
	if err != nil {
		return err
	}
	err = func() error {
		defer unix.Munmap(mapping)
		return t.visitMapped(s, mapping, ws, visit)
	}()
	if err != nil {
		return s.because(err, fd)
	}
	for _, w := range ws { // after the unmapping: pages that are mapped stay in the cache
		t.dropPages(fd, s, w)
	}
	return s.unchanged(fd)
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
	err = t.visitMapped(s, m.bytes, ws, visit)
	if t.Access == Advise {
		for _, w := range ws {
			from, to := t.pages(s, w)
			unix.Madvise(m.bytes[from:min(to, int64(len(m.bytes)))], unix.MADV_DONTNEED)
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
	if m.bytes, err = s.mmap(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	unix.Madvise(m.bytes, unix.MADV_DONTDUMP)
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

func (s *shard) unchangedAtPath() error {
	var st unix.Stat_t
	if err := unix.Stat(s.path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: s.path, Err: err}
	}
	return s.same(identityOf(&st))
}

func (s *shard) mmap(fd int) ([]byte, error) {
	mapping, err := unix.Mmap(fd, 0, int(s.id.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: s.path, Err: err}
	}
	unix.Madvise(mapping, unix.MADV_RANDOM)
	return mapping, nil
}

var errFault = errors.New("the mapped file cannot be read there (truncated meanwhile, or an input/output error)")

// visitMapped calls visit with slices of the mapping. A page that cannot be had (the file was truncated, the disk failed)
// raises SIGBUS, which is made an error here; a fault anywhere else stays the panic that it is.
func (t *Tokens) visitMapped(s *shard, mapping []byte, ws []Window, visit func(Window, []byte) error) (err error) {
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
		err = fmt.Errorf("%s: byte %d: %w", s.path, fault.Addr()-first, errFault)
	}()
	for _, w := range ws {
		from, to := t.bytes(s, w)
		if err := visit(w, mapping[from:to]); err != nil {
			return err
		}
	}
	return nil
}
