package fs

import (
	"log/slog"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/guard"
	"batchfs/fs/state"
)

// uncachedFlags bypass the page cache, which all handles of a file share. They are for files whose
// handles differ in content.
const uncachedFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH

func (t *tree) CostOfOpen(in *fuse.OpenIn) guard.Cost {
	i := inode(in.NodeId)
	return t.cost(i, i.kind().isNext() || i.kind().isNumbered() || i.kind() == infoFile || t.needsSequence(i))
}

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
	case k.isText():
		fh, err := t.openText(i, cancel)
		if err != nil {
			return t.FailRequest(in.Unique, in.NodeId, err)
		}
		out.Fh, out.OpenFlags = fh, uncachedFlags
	case k.isNumbered():
		b, err := t.refreshToOpen(i, cancel)
		if err != nil {
			return t.FailRequest(in.Unique, in.NodeId, err)
		}
		if i.outdated(b) {
			return fuse.Status(syscall.ESTALE) // makes the kernel look the path up again
		}
		out.Fh = uint64(b.Spec().Version)
		if k == batchJSON { // a restart can rename sources
			out.OpenFlags &^= fuse.FOPEN_KEEP_CACHE
		}
	}
	return fuse.OK
}

// refresh returns the latest BatchList of a file's split, after checking the token files from which
// the file will be read. It is nil if the split is forgotten.
func (t *tree) refresh(i inode, cancel <-chan struct{}) (BatchList, error) {
	s := t.sequences.get(i.sequence())
	switch {
	case s == nil:
		return nil, errForgotten
	case i.kind().spansBatches():
		return s.LatestWhole(cancel)
	}
	return s.LatestFor(t.batchOf(i), cancel)
}

// batchOf returns the number of a file's first batch. For next*, it is the number taken next.
func (t *tree) batchOf(i inode) uint64 {
	if i.kind().isNext() {
		return t.shared.Sequences[i.sequence()].Next()
	}
	return i.firstBatch()
}

// refreshToOpen is like refresh, but fails with state.EndedError if the file's batch is beyond the
// last one.
func (t *tree) refreshToOpen(i inode, cancel <-chan struct{}) (BatchList, error) {
	b, err := t.refresh(i, cancel)
	if err == nil && t.batchOf(i) >= b.Spec().Batches {
		err = state.EndedError(b.Spec().Batches)
	}
	return b, err
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
	case k.isText():
		t.texts.release(in.Fh)
	}
}
