package localfile

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// An openedFile is a descriptor that a File keeps between reads if Options.StayOpen is set. It is
// closed once neither the File nor a read refers to it, so a read must keep it alive
// (runtime.KeepAlive) while it uses fd.
type openedFile struct{ fd int }

// descriptors counts the descriptors that all files keep. The limit, maxDescriptors, leaves most of
// the descriptors of the process to the rest of the program. Files beyond the limit are opened for
// each read.
var (
	descriptors atomic.Int64

	maxDescriptors = func() int64 {
		var limit unix.Rlimit
		// Go has already raised the soft limit to the hard limit. If Getrlimit fails, limit stays
		// 0.
		unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
		return int64(min(limit.Cur/4, 1<<14))
	}()
)

// ensureOpen returns the kept descriptor, and opens the file if there is none. The error is
// unix.EMFILE if the process keeps too many already.
func (f *File) ensureOpen() (*openedFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != nil {
		return f.opened, nil
	}
	if descriptors.Add(1) > maxDescriptors {
		descriptors.Add(-1)
		return nil, unix.EMFILE
	}
	fd, err := f.openUnchanged()
	if err != nil {
		descriptors.Add(-1)
		return nil, err
	}
	unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	f.opened = &openedFile{fd}
	// Reads may still use the file after f.opened is dropped, so the garbage collector closes it.
	runtime.AddCleanup(f.opened, func(fd int) {
		unix.Close(fd)
		descriptors.Add(-1)
	}, fd)
	return f.opened, nil
}

// Release drops the descriptor and the mapping, which frees the space of a deleted file.
func (f *File) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = nil
	f.dropMapping()
}
