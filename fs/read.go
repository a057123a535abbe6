package fs

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/guard"
	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/failpoint"
	"batchfs/internal/process"
)

// Handles of these files differ in content, so it cannot lie in the page cache, which all handles share.
const uncached = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH

func (t *tree) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := inode(in.NodeId)
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	switch k := i.kind(); {
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case t.shared.Closing.Load() != 0:
		return fuse.Status(syscall.ESHUTDOWN)
	case k.isNext():
		return t.openNext(i, in, out)
	case k.isLiveText():
		out.Fh, out.OpenFlags = t.openText(i), uncached
	case k.isNumbered():
		s, err := t.sequences.now(i.sequence(), i.batches())
		if err != nil {
			return t.Fault(in.Unique, in.NodeId, err)
		}
		if i.outdated(s) {
			return fuse.Status(syscall.ESTALE) // upon which the kernel looks the path up again
		}
		out.Fh = uint64(s.Spec().Version)
	}
	return fuse.OK
}

func (t *tree) openNext(i inode, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	// Some readers do not check whether a read failed.
	if _, err := t.sequences.now(i.sequence(), t.shared.Sequences[i.sequence()].Next()); err != nil {
		return t.Fault(in.Unique, in.NodeId, err)
	}
	fh, ok := t.handles.Open(i.sequence(), in.Pid, in.Flags&syscall.O_NONBLOCK != 0, in.Unique)
	if !ok {
		t.log.limited(slog.LevelError, "too many open handles of next: opens fail with ENFILE", "most", state.MaxHandles)
		return fuse.Status(syscall.ENFILE)
	}
	out.Fh, out.OpenFlags = fh, uncached
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

func (t *tree) Read(late <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	i := inode(in.NodeId)
	if k := i.kind(); (k.isNext() || k.isLiveText()) && guard.ForPageCache(in) {
		if k.isNext() {
			t.logUncached(i, in.Pid)
		}
		return nil, fuse.EINVAL
	}
	if text := t.textOf(i, in.Fh, in.Offset); text != nil {
		return fuse.ReadResultData(buf[:copy(buf, text[min(in.Offset, uint64(len(text))):])]), fuse.OK
	}
	answer, err := t.readArrays(late, i, in, buf)
	if err != nil {
		if i.kind().isNext() {
			t.shared.EndFailed(in.Fh)
		}
		return nil, t.Fault(in.Unique, in.NodeId, err)
	}
	return answer, fuse.OK
}

func (t *tree) readArrays(late <-chan struct{}, i inode, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, error) {
	s, off := t.sequence(i), int64(in.Offset)
	if t.isForgotten(i, s) {
		return nil, errForgotten
	}
	// An inode of batch/ holds only the low bits of the version, so the handle tells the version. It is compared before the
	// size: a reader of old tokens must get an error, not the end of a shorter new file.
	if i.kind().isLiveText() || i.kind().isNumbered() && in.Fh != uint64(s.Spec().Version) || i.outdated(s) {
		return nil, state.ErrOutdated
	}
	dst := buf[:t.replyLen(i, s, in)]
	var reading state.Reading
	if i.kind().isNext() && len(dst) > 0 {
		reading = t.shared.BeginReading(i.sequence(), in.Fh, in.Pid, in.Unique)
	}
	file, isComputed := i.kind().entry().content.(computed)
	switch {
	case len(dst) == 0:
		return fuse.ReadResultData(dst), nil
	case isComputed:
		return fuse.ReadResultData(dst), file.read(i, s, dst, off)
	case i.kind().isNext():
		return t.readNext(late, i, in, reading, state.Span{Off: off, Len: int64(len(dst)), Size: t.size(i, s)}, dst)
	default:
		return t.readBatches(i, s, reading, i.firstBatch(), off, dst)
	}
}

// readNext reads a span of the batch that a handle holds. At the beginning of a batch it takes other tokens where they changed
// and are followed.
func (t *tree) readNext(late <-chan struct{}, i inode, in *fuse.ReadIn, reading state.Reading, span state.Span, buf []byte) (fuse.ReadResult, error) {
	if i.kind().batches().format != raw && span.Off+span.Len <= headerBytes {
		// The header alone reads no tokens, which would show that they changed.
		if _, err := t.sequences.now(i.sequence(), t.shared.Sequences[i.sequence()].Next()); err != nil {
			return nil, err
		}
	}
	read := state.Read{
		ID: in.Unique, FH: in.Fh, Span: span,
		Thread:  uint64(in.Pid)<<32 | in.LockOwner&math.MaxUint32, // one of them is the same where the other is 0
		Cut:     span.Len > mount.MaxRequest-maxGap && span.Off+span.Len < span.Size,
		PastEnd: int64(in.Size) > span.Len,
	}
	for try := 1; ; try++ {
		s := t.sequence(i)
		if s == nil {
			return nil, errForgotten
		}
		read.Version = s.Spec().Version
		k, err := t.handles.AssignBatch(read, late)
		if err != nil {
			return nil, err
		}
		answer, err := t.readBatches(i, s, reading, k, span.Off, buf)
		if err == nil {
			return answer, nil
		}
		t.handles.GiveBack(in.Unique)
		if !s.Spec().Follows || !errors.Is(err, syscall.ESTALE) || try == maxTries {
			return nil, err
		}
		if _, err := t.sequences.now(i.sequence(), array.NoBatch); err != nil {
			return nil, err
		}
	}
}

// The first request of a long read(2) is shorter than mount.MaxRequest by up to a page for each iovec.
var maxGap = 16 * int64(os.Getpagesize())

// Tokens that change so often while they are read are not served.
const maxTries = 10

// readBatches returns up to len(buf) bytes of a file that shows batches of s, from byte off on. k
// is the first batch of the file. The reply may alias buf.
func (t *tree) readBatches(i inode, s Sequence, reading state.Reading, k uint64, off int64, buf []byte) (fuse.ReadResult, error) {
	failpoint.Hit("read")
	answer := replies.Get().(*reply)
	rest, file := buf, i.kind().batches()
	if file.format != raw {
		if off < headerBytes {
			n := copy(buf, file.header(i, s, k)[off:])
			rest, off = buf[n:], off+int64(n)
		}
		off -= headerBytes
	}
	from, shown := file.shown(i, s)
	answer.prefetcher, answer.split, answer.reading = t.prefetcher, t.sequences.splitOf(i.sequence()), reading
	answer.sequence, answer.number = s, i.sequence()
	if len(rest) > 0 && file.which != everyBatch {
		answer.stream, answer.buffer = t.prefetcher.lookup(s, k)
	}
	if answer.buffer != nil && !t.isCurrent(answer.buffer, i, s, k) {
		answer.buffer.RUnlock()
		answer.buffer = nil
	}
	if answer.buffer != nil {
		answer.parts = [2][]byte{buf[:len(buf)-len(rest)], answer.buffer.bytes[from+off:][:len(rest)]}
	} else {
		answer.parts = [2][]byte{buf}
		if err := readShown(s, rest, k, off, from, shown); err != nil {
			return nil, err
		}
	}
	if end := off + int64(len(rest)); end > off {
		answer.begun, answer.end = k+uint64((off+shown-1)/shown), k+uint64((end-1)/shown)+1
	}
	return answer, nil
}

// replyLen returns how many bytes of file i a READ gets.
func (t *tree) replyLen(i inode, s Sequence, in *fuse.ReadIn) int64 {
	return min(int64(in.Size), max(t.size(i, s)-int64(in.Offset), 0))
}

func (t *tree) Done(in *fuse.ReadIn, result fuse.ReadResult) {
	r, ok := result.(*reply)
	if !ok { // the file shows no batches
		return
	}
	if inode(in.NodeId).kind().isNext() {
		t.handles.Answered(in.Unique)
	}
	t.shared.CountOnce(in.Unique, func() { t.count(r) })
}

func (t *tree) count(r *reply) {
	entry := &t.shared.Sequences[r.number]
	entry.Reads.Add(1)
	entry.Bytes.Add(uint64(r.Size()))
	if r.buffer != nil {
		entry.Ready.Add(1)
	}
	if r.end == 0 {
		return
	}
	entry.NoteBatch(r.end - 1)
	if r.begun == r.end {
		return
	}
	entry.Begun.Add(r.end - r.begun)
	counts := &t.shared.Sources[r.split]
	for source := range r.sequence.Spec().Sources {
		for k := r.begun; k < r.end; k++ {
			counts[min(source, state.MaxSources-1)].Rows.Add(r.sequence.RowsOf(source, k))
		}
	}
}

func (t *tree) Discard(result fuse.ReadResult) {
	if r, ok := result.(*reply); ok {
		r.reading.Discard()
		r.reading, r.stream = state.Reading{}, nil // without a stream, Done prefetches nothing
	}
}

// isCurrent says whether a buffer with batch k of s holds it of the tokens as they are now.
func (t *tree) isCurrent(b *buffer, i inode, s Sequence, k uint64) bool {
	if b.delivered.Load() > 0 {
		k = array.NoBatch // its files were looked at when it began to be read
	}
	now, err := t.sequences.now(i.sequence(), k)
	return err == nil && now == s
}

// readShown fills dst from byte off on of a file that shows, of each of batches k, k+1, … of s, the shown bytes from byte from on.
func readShown(s Sequence, dst []byte, k uint64, off, from, shown int64) error {
	if shown == s.Spec().Batch.Bytes() && len(dst) > 0 { // the whole batch
		return s.Read(dst, k, off)
	}
	for k, off = k+uint64(off/shown), off%shown; len(dst) > 0; k, off = k+1, 0 {
		n := min(int64(len(dst)), shown-off)
		if err := s.Read(dst[:n], k, from+off); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

// logUncached says which program maps next, because the SIGBUS that ends it does not say why.
func (t *tree) logUncached(i inode, pid uint32) {
	comm, _ := os.ReadFile(process.Dir(int(pid)) + "/comm")
	t.log.limited(slog.LevelWarn, "a program maps a file that cannot be mapped, and gets SIGBUS, or calls sendfile with it, and gets EINVAL: "+
		"it should read the file, or map batch/<k> or batches.npy",
		"file", i.kind().entry().name, "pid", pid, "program", strings.TrimSpace(string(comm)))
}
