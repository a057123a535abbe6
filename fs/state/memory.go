package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A header is the beginning of the file. It says where the sections lie. Processes of other builds read them too: a section keeps its
// number, and each field its offset. A section may grow at its end. Elements of arrays do not grow: a new field of theirs is a new
// section.
type header struct {
	Magic    [8]byte
	Version  uint64 // of this header
	Sections [64]extent
}

// An extent begins at a page of the file.
type extent struct{ Offset, Bytes uint64 }

var (
	magic     = [8]byte{'b', 'a', 't', 'c', 'h', 'f', 's'}
	errLayout = errors.New("another version of batchfs made this mount, and its shared memory differs: unmount, and mount again")
)

const headerVersion = 1

// A section is a part of the memory: a field of Shared, and the bytes of what it points to.
type section struct {
	field *unsafe.Pointer
	bytes uint64
}

func sectionAt[T any](field **T) section {
	return section{(*unsafe.Pointer)(unsafe.Pointer(field)), uint64(unsafe.Sizeof(**field))}
}

// pages rounds up.
func pages(bytes uint64) uint64 {
	page := uint64(os.Getpagesize())
	return (bytes + page - 1) / page * page
}

// readHeader returns the header of a file that a user may have forged.
func readHeader(file *os.File) (h header, err error) {
	info, err := file.Stat()
	if err != nil {
		return h, err
	}
	size := uint64(info.Size())
	err = binary.Read(io.NewSectionReader(file, 0, info.Size()), binary.NativeEndian, &h)
	if err != nil || h.Magic != magic || h.Version != headerVersion {
		return h, errLayout
	}
	for i, s := range h.Sections {
		if s.Offset%uint64(os.Getpagesize()) != 0 || s.Offset > size || s.Bytes > size-s.Offset {
			return h, fmt.Errorf("shared memory: section %d, %d bytes from %d on, is not in a file of %d bytes", i, s.Bytes, s.Offset, size)
		}
	}
	return h, nil
}

// IsShared reports whether a file begins like the shared memory of a mount, made by any version.
func IsShared(file *os.File) bool {
	var begins [len(magic)]byte
	_, err := file.ReadAt(begins[:], 0)
	return err == nil && begins == magic
}

// New makes the shared memory of a mount. The memory lives as long as the file, or its last mapping.
func New() (*os.File, *Shared, error) {
	fd, err := unix.MemfdCreate("batchfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "batchfs")
	s, err := create(file, new(Shared).sections())
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	s.Began = time.Now().UnixNano()
	return file, s, nil
}

func create(file *os.File, sections []section) (*Shared, error) {
	h := header{Magic: magic, Version: headerVersion}
	size := pages(uint64(unsafe.Sizeof(h)))
	for i, s := range sections {
		h.Sections[i] = extent{size, s.bytes}
		size += pages(s.bytes)
	}
	text, err := binary.Append(nil, binary.NativeEndian, h)
	if err == nil {
		err = file.Truncate(int64(size))
	}
	if err == nil {
		_, err = file.WriteAt(text, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return Map(file)
}

// Map maps the state in a file that New made, as far as this build knows its sections. What the file lacks is memory of this process, of
// zeros.
func Map(file *os.File) (*Shared, error) {
	h, err := readHeader(file)
	if err != nil {
		return nil, err
	}
	s := new(Shared)
	for _, known := range s.sections() {
		s.bytes += uintptr(pages(known.bytes))
	}
	const prot = unix.PROT_READ | unix.PROT_WRITE
	const ours = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if s.base, err = unix.MmapPtr(-1, 0, nil, s.bytes, prot, ours); err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", s.bytes, err)
	}
	at := s.base
	for i, known := range s.sections() {
		*known.field = at
		if n := min(known.bytes, h.Sections[i].Bytes); n > 0 {
			_, err := unix.MmapPtr(int(file.Fd()), int64(h.Sections[i].Offset), at, uintptr(n), prot, unix.MAP_SHARED|unix.MAP_FIXED)
			if err != nil {
				s.Close()
				return nil, fmt.Errorf("shared memory, section %d: %w", i, err)
			}
		}
		at = unsafe.Add(at, pages(known.bytes))
	}
	return s, nil
}

// Close unmaps the memory. Nothing of s may be used afterwards.
func (s *Shared) Close() { unix.MunmapPtr(s.base, s.bytes) }
