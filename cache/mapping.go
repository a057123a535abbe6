package cache

import (
	"errors"
	"fmt"
	"os"
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
	switch t.Access {
	case Pread:
		return t.readPread(s, ws, visit)
	case Remap:
		return t.readRemap(s, ws, visit)
	default:
		return t.readMapped(s, ws, visit)
	}
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
	if err := t.keepMapping(s); err != nil {
		return err
	}
	if err := s.unchangedAtPath(); err != nil {
		return err
	}
	err := t.visitMapped(s, s.mapping, ws, visit)
	if t.Access == Advise {
		for _, w := range ws {
			from, to := t.pages(s, w)
			unix.Madvise(s.mapping[from:min(to, int64(len(s.mapping)))], unix.MADV_DONTNEED)
			t.dropPages(s.fd, s, w)
		}
	}
	if changed := s.unchangedAtPath(); changed != nil {
		return changed
	}
	return err
}

// keepMapping maps the shard at its first read.
func (t *Tokens) keepMapping(s *shard) error {
	s.keep.Lock()
	defer s.keep.Unlock()
	if s.mapping != nil {
		return nil
	}
	fd, err := s.open()
	if err != nil {
		return err
	}
	if s.mapping, err = s.mmap(fd); err != nil {
		unix.Close(fd)
		return err
	}
	unix.Madvise(s.mapping, unix.MADV_DONTDUMP)
	if t.Access == Advise && t.DropPageCache {
		s.fd = fd
		return nil
	}
	return unix.Close(fd)
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
