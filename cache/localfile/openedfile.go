package localfile

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/internal/eintr"
)

// An openedFile is a mapping or a descriptor of a file, or both, that a File keeps between reads.
// It is closed once neither the File nor a read refers to it, so a read must keep it alive
// (runtime.KeepAlive) while it uses bytes or fd.
type openedFile struct {
	stamp Stamp
	bytes []byte // mapping of the file; nil under StayOpen
	fd    int    // -1 if only the mapping is kept
}

// mappings counts the files that keep only a mapping, up to maxMappings in the process, and
// descriptors those that keep a descriptor, up to maxDescriptors. Files beyond these limits are
// opened for each read, which takes about as long as a read from a mapping. maxDescriptors leaves
// most descriptors to the rest of the program.
var (
	mappings, descriptors atomic.Int64

	maxDescriptors = func() int64 {
		var limit unix.Rlimit
		// Go has already raised the soft limit to the hard limit. If Getrlimit fails, limit stays
		// 0.
		unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
		return int64(min(limit.Cur/4, 1<<14))
	}()
)

// staysOpen reports whether the file keeps a descriptor, which dropping pages from the page cache
// requires.
func (f *File) staysOpen() bool {
	return f.access == StayOpen || f.access == Advise && f.dropPageCache
}

// faultedAround returns the part of the mapping that page faults in r may have mapped. The kernel
// also maps cached pages nearby, and whole large folios, but only within one page table. Since
// Linux 6.14, freeing all pages of a page table also frees the table.
func (o *openedFile) faultedAround(r Range) []byte {
	page := int64(os.Getpagesize())
	table := page * page / 8
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(o.bytes))))
	from := (first+r.From)&^(table-1) - first
	to := (first+r.To+table-1)&^(table-1) - first
	return o.bytes[max(from, 0):min(to, int64(len(o.bytes)))]
}

// ensureOpen returns the kept mapping or descriptor, and creates it if there is none or an equal
// copy replaced the file. The error is unix.ENOMEM if the process keeps too many already.
func (f *File) ensureOpen() (*openedFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != nil && f.opened.stamp == f.Stamp() {
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
	// Reads may still use o after f.opened is replaced, so the garbage collector closes it.
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
	fd, current, err := f.openUnchanged()
	if err != nil {
		return nil, err
	}
	if f.access == StayOpen {
		unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
		return &openedFile{stamp: current, fd: fd}, nil
	}
	var bytes []byte
	err = eintr.Retry(func() (err error) {
		bytes, err = unix.Mmap(fd, 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		unix.Close(fd)
		return nil, f.pathError("mmap", err)
	}
	adviseNew(bytes)
	if !f.staysOpen() {
		unix.Close(fd)
		fd = -1
	}
	return &openedFile{current, bytes, fd}, nil
}

// Release drops the mapping or descriptor, which frees the space of a deleted file.
func (f *File) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = nil
}
