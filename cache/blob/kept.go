package blob

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A mapping of a whole file stays until no reader holds it.
type mapping struct {
	bytes []byte
	id    Identity // of what is mapped
	fd    int      // open only under Advise with dropPageCache
}

// keptMappings counts the mappings of all files that stay.
var keptMappings atomic.Int64

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

// keepMapping maps the file at its first read, and again after another one was adopted. The error is ENOMEM if too many files
// are mapped.
func (f *file) keepMapping() (*mapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept != nil && f.kept.id == f.Identity() {
		return f.kept, nil
	}
	f.kept = nil
	if keptMappings.Add(1) > maxKept {
		keptMappings.Add(-1)
		return nil, f.failed("mmap", unix.ENOMEM)
	}
	m, err := f.mapWhole()
	if err != nil {
		keptMappings.Add(-1)
		return nil, err
	}
	f.kept = m
	return m, nil
}

func (f *file) mapWhole() (*mapping, error) {
	fd, now, err := f.open()
	if err != nil {
		return nil, err
	}
	m := &mapping{id: now, fd: fd}
	if m.bytes, err = unix.Mmap(fd, 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		unix.Close(fd)
		return nil, f.failed("mmap", err)
	}
	adviseNew(m.bytes)
	keep := f.access == Advise && f.dropPageCache
	if !keep {
		unix.Close(fd)
	}
	// Reads that are under way hold the mapping, so there is no moment to unmap at but the collector's.
	runtime.AddCleanup(m, func(bytes []byte) {
		unix.Munmap(bytes)
		keptMappings.Add(-1)
		if keep {
			unix.Close(fd)
		}
	}, m.bytes)
	return m, nil
}

// Release drops the mapping, which keeps the space of a deleted file taken.
func (f *file) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept, f.opened = nil, nil
}

// An opened is a file that stays open until no reader holds it.
type opened struct{ fd int }

// keptOpen counts the files that stay open. A process may have some more.
var keptOpen atomic.Int64

var maxOpen = func() int64 {
	var limit unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // or 0
	return int64(min(limit.Cur/4, 1<<14))
}()

// stayOpen opens the file at its first read, and keeps it open. It returns nil where too many are open, or this one cannot be.
func (f *file) stayOpen() *opened {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != nil {
		return f.opened
	}
	if keptOpen.Add(1) > maxOpen {
		keptOpen.Add(-1)
		return nil
	}
	fd, _, err := f.open()
	if err != nil {
		keptOpen.Add(-1)
		return nil
	}
	unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	f.opened = &opened{fd}
	runtime.AddCleanup(f.opened, func(fd int) {
		unix.Close(fd)
		keptOpen.Add(-1)
	}, fd)
	return f.opened
}
