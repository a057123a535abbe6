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

	"batchfs/internal/clock"
)

// A header begins the file and locates the sections. Because processes of other builds read the
// file too, a section keeps its number, a field keeps its offset, and a section may only grow at
// its end. Elements of arrays cannot grow: a new field for them needs a new section.
type header struct {
	Magic    [8]byte
	Version  uint64 // headerVersion
	Sections [64]sectionRange
}

type sectionRange struct{ Offset, Bytes uint64 } // Offset is a multiple of the page size

var (
	magic     = [8]byte{'b', 'a', 't', 'c', 'h', 'f', 's'}
	errLayout = errors.New("another version of batchfs made this mount, and its shared memory is incompatible: unmount it, and mount again")
)

const headerVersion = 1

// A section is the part of the shared memory that one field of Shared points to.
type section struct {
	pointer *unsafe.Pointer // address of the field
	bytes   uint64          // size of what it points to
}

func sectionAt[T any](field **T) section {
	return section{(*unsafe.Pointer)(unsafe.Pointer(field)), uint64(unsafe.Sizeof(**field))}
}

func roundToPages(bytes uint64) uint64 {
	page := uint64(os.Getpagesize())
	return (bytes + page - 1) / page * page
}

// readHeader reads and checks the header of a file, which a user may have forged.
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
			return h, fmt.Errorf("shared memory: section %d (%d bytes at offset %d) is not within the file of %d bytes", i, s.Bytes, s.Offset, size)
		}
	}
	return h, nil
}

// IsShared reports whether file begins like the shared memory of a mount, of any version.
func IsShared(file *os.File) bool {
	var prefix [len(magic)]byte
	_, err := file.ReadAt(prefix[:], 0)
	return err == nil && prefix == magic
}

// New creates the shared memory of a mount, which lives as long as the file is open or mapped.
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
	s.Heartbeat.Store(clock.Now())
	return file, s, nil
}

// create makes an empty file the shared memory with these sections, and maps it.
func create(file *os.File, sections []section) (*Shared, error) {
	h := header{Magic: magic, Version: headerVersion}
	size := roundToPages(uint64(unsafe.Sizeof(h)))
	for i, s := range sections {
		h.Sections[i] = sectionRange{size, s.bytes}
		size += roundToPages(s.bytes)
	}
	encoded, err := binary.Append(nil, binary.NativeEndian, h)
	if err == nil {
		err = file.Truncate(int64(size))
	}
	if err == nil {
		_, err = file.WriteAt(encoded, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return Map(file)
}

// Map maps the shared memory in a file that New created, possibly in another build. Whatever the
// file lacks is zeroed memory that only this process sees.
func Map(file *os.File) (*Shared, error) {
	h, err := readHeader(file)
	if err != nil {
		return nil, err
	}
	s := new(Shared)
	for _, known := range s.sections() {
		s.bytes += uintptr(roundToPages(known.bytes))
	}
	const prot = unix.PROT_READ | unix.PROT_WRITE
	const private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if s.base, err = unix.MmapPtr(-1, 0, nil, s.bytes, prot, private); err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", s.bytes, err)
	}
	addr := s.base
	for i, known := range s.sections() {
		*known.pointer = addr
		if n := min(known.bytes, h.Sections[i].Bytes); n > 0 {
			_, err := unix.MmapPtr(int(file.Fd()), int64(h.Sections[i].Offset), addr, uintptr(n), prot, unix.MAP_SHARED|unix.MAP_FIXED)
			if err != nil {
				s.Close()
				return nil, fmt.Errorf("shared memory, section %d: %w", i, err)
			}
		}
		addr = unsafe.Add(addr, roundToPages(known.bytes))
	}
	return s, nil
}

// Close unmaps the memory. s must not be used afterwards.
func (s *Shared) Close() { unix.MunmapPtr(s.base, s.bytes) }
