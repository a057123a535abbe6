package blob

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/internal/eintr"
)

// A kept is the mapping or the descriptor of a file, or both, that stays open between reads. It is
// closed once neither the file nor a read refers to it.
type kept struct {
	id    Identity // identity of the opened file
	bytes []byte   // mapping of the whole file; nil under stayOpen
	fd    int      // descriptor; -1 if only the mapping stays
}

// keptMappings counts files that keep only a mapping, and keptOpen files that keep a descriptor, up
// to maxKept and maxOpen in the whole process. Any other file is opened for each read, which takes
// no longer than a read from a mapping. maxOpen leaves most descriptors to reads, to connections,
// and to the rest of the program.
var (
	keptMappings, keptOpen atomic.Int64

	maxOpen = func() int64 {
		var limit unix.Rlimit
		// The Go runtime has raised the soft limit to the hard one. After an error, limit stays 0.
		unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
		return int64(min(limit.Cur/4, 1<<14))
	}()
)

// keepsOpen reports whether the file keeps a descriptor between reads. Dropping pages from the page
// cache requires one.
func (f *file) keepsOpen() bool {
	return f.access == stayOpen || f.access == Advise && f.dropPageCache
}

// around returns the part of the mapping that a page fault in r may have mapped: the kernel also
// maps cached pages nearby, and whole large folios, but never more than one page table holds. If
// the pages of a whole page table are given back, Linux 6.14 and later also free the table.
func (k *kept) around(r Range) []byte {
	page := int64(os.Getpagesize())
	table := page * page / 8
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(k.bytes))))
	from := (first+r.From)&^(table-1) - first
	to := (first+r.To+table-1)&^(table-1) - first
	return k.bytes[max(from, 0):min(to, int64(len(k.bytes)))]
}

// keep opens or maps the file, unless it is kept already. The error is unix.ENOMEM if the process
// already keeps too many files.
func (f *file) keep() (*kept, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept != nil && f.kept.id == f.Identity() {
		return f.kept, nil
	}
	f.kept = nil
	count, most := &keptMappings, int64(maxKept)
	if f.keepsOpen() {
		count, most = &keptOpen, maxOpen
	}
	if count.Add(1) > most {
		count.Add(-1)
		return nil, unix.ENOMEM
	}
	k, err := f.openKept()
	if err != nil {
		count.Add(-1)
		return nil, err
	}
	// Concurrent reads may still hold it, so it is closed when the garbage collector finds it
	// unreachable.
	runtime.AddCleanup(k, func(k kept) {
		if k.bytes != nil {
			unix.Munmap(k.bytes)
		}
		if k.fd >= 0 {
			unix.Close(k.fd)
		}
		count.Add(-1)
	}, *k)
	f.kept = k
	return k, nil
}

func (f *file) openKept() (*kept, error) {
	fd, now, err := f.openUnchanged()
	if err != nil {
		return nil, err
	}
	if f.access == stayOpen {
		unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
		return &kept{id: now, fd: fd}, nil
	}
	var bytes []byte
	err = eintr.Retry(func() (err error) {
		bytes, err = unix.Mmap(fd, 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		unix.Close(fd)
		return nil, f.failed("mmap", err)
	}
	adviseNew(bytes)
	if !f.keepsOpen() {
		unix.Close(fd)
		fd = -1
	}
	return &kept{now, bytes, fd}, nil
}

// Release drops the mapping or the descriptor that stays between reads. While one is open, the
// space of a deleted file is not freed.
func (f *file) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = nil
}
