package fs

import (
	"errors"
	"math"
	"os"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/failpoint"
	"batchfs/fs/mount"
	"batchfs/fs/process"
	"batchfs/fs/state"
)

func (t *tree) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := inode(in.NodeId)
	r, err := t.deadlines.begin(in.Unique, i)
	if err != nil {
		return t.fault(i, err)
	}
	defer t.ends(r)
	const uncached = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	switch k := i.kind(); {
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case t.shared.Closing.Load() != 0:
		return fuse.Status(syscall.ESHUTDOWN)
	case k.isNext():
		if err := t.takeTurn(r, in.Caller); err != nil {
			return t.fault(i, err)
		}
		// Some readers do not look whether a read failed.
		if _, err := t.sequences.now(i.sequence(), t.shared.Sequences[i.sequence()].Next()); err != nil {
			return t.fault(i, err)
		}
		fh, ok := t.handles.Open(i.sequence(), in.Flags&syscall.O_NONBLOCK != 0, in.Unique)
		if !ok {
			t.fullLogged.Do(func() { t.log.Error("too many open handles of next: opens fail with ENFILE", "most", state.MaxHandles) })
			return fuse.Status(syscall.ENFILE)
		}
		r.undo = func() { t.handles.Release(fh) }
		out.Fh, out.OpenFlags = fh, uncached
	case k.isLiveText():
		if k == infoFile { // which may be long to make
			if err := t.takeTurn(r, in.Caller); err != nil {
				return t.fault(i, err)
			}
		}
		fh := t.texts.keep(i)
		r.undo = func() { t.texts.release(fh) }
		out.Fh, out.OpenFlags = fh, uncached
	default:
		if k.isNumbered() {
			if err := t.takeTurn(r, in.Caller); err != nil {
				return t.fault(i, err)
			}
			s, err := t.sequences.now(i.sequence(), i.batches())
			if err != nil {
				return t.fault(i, err)
			}
			if i.outdated(s) {
				return fuse.Status(syscall.ESTALE) // upon which the kernel looks the path up again
			}
			out.Fh = uint64(s.Version)
		}
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	}
	return fuse.OK
}

// ends is deferred by a handler.
func (t *tree) ends(r *request) {
	t.endTurns(r)
	t.deadlines.end(r)
}

func (t *tree) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch k := inode(in.NodeId).kind(); {
	case k.isNext():
		t.handles.Release(in.Fh)
	case k.isLiveText():
		t.texts.release(in.Fh)
	}
}

func (t *tree) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (result fuse.ReadResult, status fuse.Status) {
	i := inode(in.NodeId)
	k := i.kind()
	// What changes from handle to handle cannot lie in the page cache, which all handles share.
	if (k.isNext() || k.isLiveText()) && isForPageCache(in) {
		if k.isNext() {
			t.logUncached(i, in.Pid)
		}
		return nil, fuse.EINVAL
	}
	r, err := t.deadlines.begin(in.Unique, i)
	if err != nil {
		return nil, t.readFails(in, err)
	}
	defer func() {
		if p := recover(); p != nil {
			t.deadlines.giveBack(r)
			status = t.panicked(p)
		}
		t.ends(r)
	}()
	if text := t.textOf(r, in.Fh, in.Offset); text != nil {
		off := min(in.Offset, uint64(len(text)))
		return fuse.ReadResultData(buf[:copy(buf, text[off:])]), fuse.OK
	}
	s := t.sequence(i)
	if t.isForgotten(i, s) {
		return nil, t.readFails(in, errForgotten)
	}
	// An inode of batch/ holds only the low bits of the version, so the handle tells the version. It is compared before the
	// size: a reader of old tokens must get an error, not the end of a shorter new file.
	if k.isLiveText() || k.isNumbered() && in.Fh != uint64(s.Version) || i.outdated(s) {
		return nil, t.readFails(in, state.ErrOutdated)
	}
	off := int64(in.Offset)
	size := i.size(s)
	buf = buf[:min(int64(len(buf)), max(size-off, 0))]
	if len(buf) == 0 {
		return fuse.ReadResultData(nil), fuse.OK
	}
	if err := t.takePlace(r, in.Caller, int64(len(buf)) > rowsPerTurnOfMany*i.rowBytes(s), buf); err != nil {
		return nil, t.readFails(in, err)
	}
	var answer *reply // nil: buf
	switch {
	case s.unsuits:
		if _, err = t.sequences.now(i.sequence(), NoBatch); err == nil {
			err = state.ErrOutdated
		}
	case k.row().content == batchOrigin:
		err = s.ReadOrigin(buf, i.rest(), off)
	case k.row().content == everyToken:
		err = s.ReadTokens(buf, off)
	case k.isNext():
		answer, err = t.readNext(r, in, state.Span{Off: off, Len: int64(len(buf)), Size: size}, buf)
	default:
		answer, err = t.readBatches(r, s, i.firstBatch(), off, buf)
	}
	switch {
	case err != nil:
		return nil, t.readFails(in, err)
	case answer == nil:
		return fuse.ReadResultData(buf), fuse.OK
	}
	return answer, fuse.OK
}

// readFails is fault for a read. One for the page cache that failed a moment ago too waits for a while.
func (t *tree) readFails(in *fuse.ReadIn, err error) fuse.Status {
	status := t.fault(inode(in.NodeId), err)
	if isForPageCache(in) {
		t.failures.pause(inode(in.NodeId), in.Offset)
	}
	return status
}

// isForPageCache tells a read that fills the page cache, for sendfile or a mapping or a read(2) of a file that is cached, from
// one that is a read(2) itself: only that comes with the owner of the handle's locks.
func isForPageCache(in *fuse.ReadIn) bool { return in.ReadFlags&fuse.READ_LOCKOWNER == 0 }

// readNext reads a span of the batch that a handle holds. At the beginning of a batch it takes other tokens where they changed
// and are followed.
func (t *tree) readNext(r *request, in *fuse.ReadIn, span state.Span, buf []byte) (*reply, error) {
	i := r.inode
	if i.kind().row().header != nil && span.Off+span.Len <= headerBytes {
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
		read.Version = s.Version
		k, err := t.deadlines.assign(r, read)
		if err != nil {
			return nil, err
		}
		answer, err := t.readBatches(r, s, k, span.Off, buf)
		if err == nil {
			return answer, nil
		}
		t.deadlines.giveBack(r)
		if !s.Follows || !errors.Is(err, syscall.ESTALE) || try == maxTries {
			return nil, err
		}
		if _, err := t.sequences.now(i.sequence(), NoBatch); err != nil {
			return nil, err
		}
	}
}

// The first request of a long read(2) is shorter than mount.MaxRequest by up to a page for each piece of memory that it goes to.
var maxGap = 16 * int64(os.Getpagesize())

// Tokens that change so often while they are read are not served.
const maxTries = 10

// textOf returns what a text shows on a handle to a reader of byte off, and nil for other files.
func (t *tree) textOf(r *request, fh, off uint64) []byte {
	i := r.inode
	row := i.kind().row()
	switch row.content {
	case fixedText:
		text, _ := row.text(&t.texts, i)
		return text
	case liveText:
	default:
		return nil
	}
	if text, ok := t.texts.of(fh); ok {
		return text
	}
	// It was let go, or another process opened it, and what is made here may be another text.
	size := fh & (1<<textBits - 1)
	if off > 0 && off >= size {
		return []byte{}
	}
	if t.isForgotten(i, t.sequence(i)) {
		return nil
	}
	text, info := row.text(&t.texts, i)
	if off > 0 && uint64(len(text)) != size {
		return nil
	}
	t.texts.hold(fh, text, info)
	r.undo = func() { t.texts.release(fh) }
	return text
}

// readBatches answers with len(buf) bytes from byte off on of a file that begins with batch k of s. They lie within the file.
// The answer may use buf for them.
func (t *tree) readBatches(r *request, s *Sequence, k uint64, off int64, buf []byte) (*reply, error) {
	failpoint.Hit("read")
	answer := replies.Get().(*reply)
	i, rest := r.inode, buf
	row := i.kind().row()
	if row.header != nil {
		if off < headerBytes {
			n := copy(buf, row.header(s, i, k)[off:])
			rest, off = buf[n:], off+int64(n)
		}
		off -= headerBytes
	}
	from, shown := i.shown(s)
	answer.prefetcher, answer.buf, answer.split = &t.prefetcher, buf, r.split
	if len(rest) > 0 && row.content != everyBatch {
		answer.stream, answer.buffer = t.prefetcher.lookup(s, k)
	}
	if len(rest) > 0 && s.Ahead != nil {
		s.Ahead(k + uint64((off+int64(len(rest)))/shown))
	}
	if answer.buffer != nil {
		of := k // Its batch is of the tokens as they were.
		if answer.buffer.delivered.Load() > 0 {
			of = NoBatch // they were looked at when it began to be read
		}
		if now, err := t.sequences.now(i.sequence(), of); err != nil || now != s {
			answer.buffer.RUnlock()
			answer.buffer = nil
		}
	}
	if answer.buffer != nil {
		answer.parts = [2][]byte{buf[:len(buf)-len(rest)], answer.buffer.bytes[from+off:][:len(rest)]}
	} else {
		answer.parts = [2][]byte{buf}
		if err := t.readShown(r, s, rest, k, off, from, shown); err != nil {
			return nil, err
		}
	}
	entry := &t.shared.Sequences[i.sequence()]
	entry.Reads.Add(1)
	entry.Bytes.Add(uint64(len(buf)))
	return answer, nil
}

// readShown fills dst from byte off on of a file that shows, of each of batches k, k+1, … of s, the shown bytes from byte from on.
func (t *tree) readShown(r *request, s *Sequence, dst []byte, k uint64, off, from, shown int64) error {
	if len(dst) == 0 {
		return nil
	}
	if shown == s.Batch.Bytes() { // the whole batch
		return t.readInTurns(r, s, dst, k, off)
	}
	since := int64(0) // bytes of this turn
	for k, off = k+uint64(off/shown), off%shown; len(dst) > 0; k, off = k+1, 0 {
		n := min(int64(len(dst)), shown-off)
		if err := t.readInTurns(r, s, dst[:n], k, from+off); err != nil {
			return err
		}
		dst = dst[n:]
		if since += n; since >= rowsPerTurnOfMany*r.inode.rowBytes(s) && len(dst) > 0 {
			since = 0
			if err := t.passTurn(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// logUncached says which program maps next, because SIGBUS, which it ends with, does not say why.
func (t *tree) logUncached(i inode, pid uint32) {
	t.uncachedLogged.Do(func() {
		comm, _ := os.ReadFile(process.Dir(int(pid)) + "/comm")
		t.log.Warn("a program maps a file that cannot be mapped, and gets SIGBUS, or calls sendfile with it, and gets EINVAL: "+
			"it should read the file, or map batch/<k> or batches.npy (logged once)",
			"file", i.kind().row().name, "pid", pid, "program", strings.TrimSpace(string(comm)))
	})
}
