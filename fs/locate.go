package fs

import (
	"math"
	"os"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/mount"
	"batchfs/fs/state"
)

// A filePart is the part of a file that a READ gets.
type filePart struct {
	inode    inode
	split    Split
	list     BatchList
	batch    uint64 // number of the first batch in the file
	off, len int64  // range in the file, in bytes
}

// locate finds the bytes that a READ gets. For next*, it uses the batch that the handle holds, or
// takes the next number. It fails with ESTALE if the file is numbered and its tokens have changed
// since it was opened.
func (t *tree) locate(r readRequest) (filePart, error) {
	i := r.inode
	s := t.sequences.get(i.sequence())
	if s == nil {
		return filePart{}, errForgotten
	}
	b, err := s.Latest()
	if err != nil {
		return filePart{}, err
	}
	// The handle of a numbered file is the version that Open saw. It is compared too, because an
	// inode in batch/ has only the low bits of its version. Do so before the size is used: a reader
	// of old tokens must get an error, not the end of a shorter new file.
	if i.kind().isNumbered() && r.Fh != uint64(b.Spec().Version) || i.outdated(b) {
		return filePart{}, state.ErrOutdated
	}
	part := filePart{inode: i, split: s, list: b, batch: i.firstBatch(), off: int64(r.Offset), len: t.replyLen(i, b, r.ReadIn)}
	if i.kind().isNext() && part.len > 0 {
		err = t.assignBatch(&part, r)
	}
	return part, err
}

func (t *tree) replyLen(i inode, b BatchList, in *fuse.ReadIn) int64 {
	return min(int64(in.Size), max(t.size(i, b)-int64(in.Offset), 0))
}

// maxGap is the number of bytes by which the first request of a long read(2) can fall short of
// mount.MaxRequest: up to a page for each iovec, if there are at most 16.
var maxGap = 16 * int64(os.Getpagesize())

// assignBatch sets the batch of a part of next*: the one that the handle holds, or a new one.
func (t *tree) assignBatch(part *filePart, r readRequest) (err error) {
	size := t.size(part.inode, part.list)
	part.batch, err = t.handles.AssignBatch(state.ReadRequest{
		ID: r.Unique, FH: r.Fh, FileRange: state.FileRange{Off: part.off, Len: part.len, Size: size},
		// Neither number suffices: Pid is 0 for readers in some other PID namespaces, and LockOwner
		// is the same for all threads of a process.
		Thread:  uint64(r.Pid)<<32 | r.LockOwner&math.MaxUint32,
		Version: part.list.Spec().Version,
		Cut:     part.len > mount.MaxRequest-maxGap && part.off+part.len < size,
		PastEnd: int64(r.Size) > part.len,
		Batches: part.list.Spec().Batches,
	}, r.cancel)
	return err
}
