package blob

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/internal/eintr"
)

// A kept is what stays of a file between two reads, until no reader holds it: a mapping of the whole file, or a descriptor.
type kept struct {
	id    Identity // of what was opened
	bytes []byte   // nil under stayOpen
	fd    int      // -1 if only the mapping stays
}

// All files of the process together keep up to maxKept mappings without a descriptor, and up to maxOpen descriptors. A file beyond
// that is opened in each read, which takes no longer than a read of a mapping. The bound leaves most descriptors to reads, to
// connections, and to the rest of the program.
var (
	keptMappings, keptOpen atomic.Int64

	maxOpen = func() int64 {
		var limit unix.Rlimit
		unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // the Go runtime has raised the soft limit to the hard one; 0 after an error
		return int64(min(limit.Cur/4, 1<<14))
	}()
)

// keepsOpen reports whether the file keeps a descriptor between reads: to drop pages from the page cache takes one.
func (f *file) keepsOpen() bool {
	return f.access == stayOpen || f.access == Advise && f.dropPageCache
}

// around is the part of the mapping that a page fault in r may have mapped: the kernel also maps cached pages nearby, and whole large folios,
// but never more than one page table holds. A kernel that gets all of a page table back (6.14 and later) frees that too.
func (k *kept) around(r Range) []byte {
	page := int64(os.Getpagesize())
	table := page * page / 8
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(k.bytes))))
	from := (first+r.From)&^(table-1) - first
	to := (first+r.To+table-1)&^(table-1) - first
	return k.bytes[max(from, 0):min(to, int64(len(k.bytes)))]
}

// keep opens or maps the file, unless it is kept already. The error is ENOMEM if too many files are kept.
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
	// Reads that are under way hold it, so there is no moment to close it at but the collector's.
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

// Release drops what stays, which keeps the space of a deleted file taken.
func (f *file) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = nil
}
