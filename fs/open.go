package fs

import (
	"log/slog"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
)

// uncachedFlags bypass the page cache, which all handles of a file share. They are for files whose
// handles differ in content.
const uncachedFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH

func (t *tree) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := inode(in.NodeId)
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	switch k := i.kind(); {
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case t.shared.Closing.Load() != 0:
		return fuse.Status(syscall.ESHUTDOWN)
	case k.isNext():
		return t.openNext(i, in, cancel, out)
	case k.isLiveText():
		out.Fh, out.OpenFlags = t.openText(i, cancel), uncachedFlags
	case k.isNumbered():
		s, err := t.refreshToOpen(i, cancel)
		if err != nil {
			return t.FailRequest(in.Unique, in.NodeId, err)
		}
		if i.outdated(s) {
			return fuse.Status(syscall.ESTALE) // makes the kernel look the path up again
		}
		out.Fh = uint64(s.Spec().Version)
		if k == batchJSON { // a restart can rename sources
			out.OpenFlags &^= fuse.FOPEN_KEEP_CACHE
		}
	}
	return fuse.OK
}

// refresh returns the latest BatchList of a file, after checking the token files from which the
// file will be read.
func (t *tree) refresh(i inode, cancel <-chan struct{}) (BatchList, error) {
	switch k := i.kind(); {
	case k.spansBatches():
		return t.sequences.latestWhole(i.sequence(), cancel)
	case k.isNext():
		return t.sequences.latestFor(i.sequence(), t.shared.Sequences[i.sequence()].Next(), cancel)
	}
	return t.sequences.latestFor(i.sequence(), i.firstBatch(), cancel)
}

// refreshToOpen is like refresh, but fails with state.ErrEnded if the file's batch is beyond the
// last one.
func (t *tree) refreshToOpen(i inode, cancel <-chan struct{}) (BatchList, error) {
	s, err := t.refresh(i, cancel)
	k := i.firstBatch()
	if i.kind().isNext() {
		k = t.shared.Sequences[i.sequence()].Next()
	}
	if err == nil && s.Spec().Batches > 0 && k >= s.Spec().Batches {
		err = state.ErrEnded
	}
	return s, err
}

func (t *tree) openNext(i inode, in *fuse.OpenIn, cancel <-chan struct{}, out *fuse.OpenOut) fuse.Status {
	// Fail here, because some readers do not check whether a read failed.
	if _, err := t.refreshToOpen(i, cancel); err != nil {
		return t.FailRequest(in.Unique, in.NodeId, err)
	}
	fh, ok := t.handles.Open(i.sequence(), in.Pid, in.Flags&syscall.O_NONBLOCK != 0, in.Unique)
	if !ok {
		t.log.tryLog(slog.LevelError, "too many open handles of next: opens fail with ENFILE", "most", state.MaxHandles)
		return fuse.Status(syscall.ENFILE)
	}
	out.Fh, out.OpenFlags = fh, uncachedFlags
	return fuse.OK
}

func (t *tree) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch k := inode(in.NodeId).kind(); {
	case k.isNext():
		t.handles.Release(in.Fh)
	case k.isLiveText():
		t.texts.release(in.Fh)
	}
}
