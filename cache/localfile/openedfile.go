package localfile

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/internal/eintr"
)

// An openedFile is the mapping or the descriptor of a file, or both, that stays open between reads.
// It is closed once neither the File nor a read refers to it.
type openedFile struct {
	id    Identity // identity of the opened file
	bytes []byte   // mapping of the whole file; nil under StayOpen
	fd    int      // descriptor; -1 if only the mapping stays
}

// mappings counts files that keep only a mapping, and descriptors files that keep a descriptor, up to
// maxMappings and maxDescriptors in the whole process. Any other file is opened for each read, which
// takes no longer than a read from a mapping. maxDescriptors leaves most descriptors to reads, to
// connections, and to the rest of the program.
var (
	mappings, descriptors atomic.Int64

	maxDescriptors = func() int64 {
		var limit unix.Rlimit
		// The Go runtime has raised the soft limit to the hard one. After an error, limit stays 0.
		unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
		return int64(min(limit.Cur/4, 1<<14))
	}()
)

// staysOpen reports whether the file keeps a descriptor between reads. Dropping pages from the page
// cache requires one.
func (f *File) staysOpen() bool {
	return f.access == StayOpen || f.access == Advise && f.dropPageCache
}

// around returns the part of the mapping that a page fault in r may have mapped: the kernel also
// maps cached pages nearby, and whole large folios, but never more than one page table holds. If
// the pages of a whole page table are given back, Linux 6.14 and later also free the table.
func (o *openedFile) around(r Range) []byte {
	page := int64(os.Getpagesize())
	table := page * page / 8
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(o.bytes))))
	from := (first+r.From)&^(table-1) - first
	to := (first+r.To+table-1)&^(table-1) - first
	return o.bytes[max(from, 0):min(to, int64(len(o.bytes)))]
}

// ensureOpen opens or maps the file, unless that has been done. The error is unix.ENOMEM if too many
// files of the process stay open already.
func (f *File) ensureOpen() (*openedFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != nil && f.opened.id == f.Identity() {
		return f.opened, nil
	}
	f.opened = nil
	count, most := &mappings, int64(maxMappings)
	if f.staysOpen() {
		count, most = &descriptors, maxDescriptors
	}
	if count.Add(1) > most {
		count.Add(-1)
		return nil, unix.ENOMEM
	}
	o, err := f.openOrMap()
	if err != nil {
		count.Add(-1)
		return nil, err
	}
	// Concurrent reads may still hold it, so it is closed when the garbage collector finds it
	// unreachable.
	runtime.AddCleanup(o, func(o openedFile) {
		if o.bytes != nil {
			unix.Munmap(o.bytes)
		}
		if o.fd >= 0 {
			unix.Close(o.fd)
		}
		count.Add(-1)
	}, *o)
	f.opened = o
	return o, nil
}

func (f *File) openOrMap() (*openedFile, error) {
	fd, now, err := f.openUnchanged()
	if err != nil {
		return nil, err
	}
	if f.access == StayOpen {
		unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
		return &openedFile{id: now, fd: fd}, nil
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
	if !f.staysOpen() {
		unix.Close(fd)
		fd = -1
	}
	return &openedFile{now, bytes, fd}, nil
}

// Release drops the mapping or the descriptor that stays between reads. While one is open, the
// space of a deleted file is not freed.
func (f *File) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = nil
}
