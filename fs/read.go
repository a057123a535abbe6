package fs

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/failpoint"
	"batchfs/internal/process"
)

// A READ takes three steps: [tree.locate] finds the bytes, [tree.fetch] gets them, and, once the
// request has succeeded in time, [tree.account] counts it.

// maxTries bounds how often a READ begins again because followed files have changed.
const maxTries = 10

func (t *tree) ServeRead(cancel <-chan struct{}, waited time.Duration, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	i := inode(in.NodeId)
	if k := i.kind(); (k.isNext() || k.isLiveText()) && fillsPageCache(in) {
		if k.isNext() {
			t.logUncached(i, in.Pid)
		}
		return nil, fuse.EINVAL
	}
	if text := t.textOf(i, in.Fh, in.Offset, cancel); text != nil {
		return fuse.ReadResultData(buf[:copy(buf, text[min(in.Offset, uint64(len(text))):])]), fuse.OK
	}
	reply, err := t.read(i, waited, in, buf, cancel)
	if err != nil {
		if i.kind().isNext() {
			t.shared.EndFailedRead(in.Fh)
		}
		return nil, t.FailRequest(in.Unique, in.NodeId, err)
	}
	return reply, fuse.OK
}

// read locates the bytes of a READ, and fetches them. If the tokens of a batch of next* have changed
// in between and are followed, it begins again with the new tokens.
func (t *tree) read(i inode, waited time.Duration, in *fuse.ReadIn, buf []byte, cancel <-chan struct{}) (fuse.ReadResult, error) {
	var timer state.ReadTimer
	if i.kind().isNext() {
		timer = t.shared.BeginRead(i.sequence(), in.Fh, in.Pid, in.Unique, waited)
	}
	for try := 1; ; try++ {
		p, err := t.locate(i, in, cancel)
		if err != nil {
			return nil, err
		}
		reply, err := t.fetch(p, timer, buf, cancel)
		if err == nil || !i.kind().isNext() {
			return reply, err
		}
		t.handles.Rollback(in.Unique)
		if !p.sequence.Spec().Follows || !errors.Is(err, syscall.ESTALE) || try == maxTries {
			return nil, err
		}
		if _, err := t.sequences.latestFor(i.sequence(), p.batch, cancel); err != nil {
			return nil, err
		}
	}
}

// A span is the bytes of a file that a READ gets.
type span struct {
	inode    inode
	sequence Batches
	batch    uint64 // first batch of the file
	off, len int64  // bytes in the file
}

// locate finds the bytes that a READ gets. For next*, it takes the batch that the handle holds, or
// the next number. It fails with ESTALE if the tokens of the file have changed since it was opened.
func (t *tree) locate(i inode, in *fuse.ReadIn, cancel <-chan struct{}) (span, error) {
	s, err := t.sequences.latest(i.sequence())
	if err != nil {
		return span{}, err
	}
	// An inode of batch/ holds only the low bits of the version, so the handle has the version. It is
	// compared before the size: a reader of old tokens must get an error, not the end of a shorter
	// new file.
	if i.kind().isLiveText() || i.kind().isNumbered() && in.Fh != uint64(s.Spec().Version) || i.outdated(s) {
		return span{}, state.ErrOutdated
	}
	p := span{inode: i, sequence: s, batch: i.firstBatch(), off: int64(in.Offset), len: t.replyLen(i, s, in)}
	if i.kind().isNext() && p.len > 0 {
		err = t.assign(&p, in, cancel)
	}
	return p, err
}

// The first request of a long read(2) is shorter than mount.MaxRequest by up to a page for each iovec.
var maxGap = 16 * int64(os.Getpagesize())

// assign sets the batch of a span of next* to the one that the handle of the READ holds.
func (t *tree) assign(p *span, in *fuse.ReadIn, cancel <-chan struct{}) (err error) {
	if p.inode.kind().batches().format != raw && p.off+p.len <= headerBytes {
		// The header alone reads no tokens, which would show that they have changed.
		if p.sequence, err = t.refresh(p.inode, cancel); err != nil {
			return err
		}
	}
	size := t.size(p.inode, p.sequence)
	p.batch, err = t.handles.AssignBatch(state.ReadRequest{
		ID: in.Unique, FH: in.Fh, Span: state.Span{Off: p.off, Len: p.len, Size: size},
		// Pid is 0 for readers in some other PID namespaces, and LockOwner is the same for all threads
		// of a process.
		Thread:  uint64(in.Pid)<<32 | in.LockOwner&math.MaxUint32,
		Version: p.sequence.Spec().Version,
		Cut:     p.len > mount.MaxRequest-maxGap && p.off+p.len < size,
		PastEnd: int64(in.Size) > p.len,
	}, cancel)
	return err
}

// fetch returns the bytes of a span. Unless they were prefetched, it computes them into buf. The
// reply may alias buf.
func (t *tree) fetch(p span, timer state.ReadTimer, buf []byte, cancel <-chan struct{}) (fuse.ReadResult, error) {
	buf = buf[:p.len]
	if len(buf) == 0 {
		timer.Discard()
		return fuse.ReadResultData(buf), nil
	}
	if file, ok := p.inode.kind().entry().content.(computed); ok {
		return fuse.ReadResultData(buf), file.read(p.inode, p.sequence, buf, p.off)
	}
	failpoint.Hit("read")
	r := replies.Get().(*reply)
	*r = reply{prefetcher: t.prefetcher, split: t.sequences.splitOf(p.inode.sequence()), timer: timer, sequence: p.sequence, number: p.inode.sequence()}
	file, rest, off := p.inode.kind().batches(), buf, p.off
	if file.format != raw {
		if off < headerBytes {
			n := copy(buf, file.header(p.inode, p.sequence, p.batch)[off:])
			rest, off = buf[n:], off+int64(n)
		}
		off -= headerBytes
	}
	from, shown := file.byteRange(p.inode, p.sequence)
	if len(rest) > 0 && file.selector != everyBatch {
		r.reader, r.slot = t.prefetched(p, cancel)
	}
	if r.slot != nil {
		r.parts = [2][]byte{buf[:len(buf)-len(rest)], r.slot.bytes[from+off:][:len(rest)]}
	} else {
		r.parts = [2][]byte{buf}
		if err := readByteRanges(p.sequence, rest, p.batch, off, from, shown); err != nil {
			return nil, err
		}
	}
	if end := off + int64(len(rest)); end > off {
		r.begun, r.end = p.batch+uint64((off+shown-1)/shown), p.batch+uint64((end-1)/shown)+1
	}
	return r, nil
}

// prefetched returns the stream of a span and, if its batch was prefetched, the buffer that holds
// it, which the caller must RUnlock. It checks the files of a batch that begins to be read.
func (t *tree) prefetched(p span, cancel <-chan struct{}) (*inOrder, *slot) {
	r, sl := t.prefetcher.request(p.sequence, p.batch)
	if sl == nil {
		return r, nil
	}
	latest, err := p.sequence, error(nil)
	if p.off == 0 || sl.sent.Load() == 0 {
		latest, err = t.sequences.latestFor(p.inode.sequence(), p.batch, cancel)
	}
	if err != nil || latest != p.sequence {
		sl.RUnlock()
		sl = nil
	}
	return r, sl
}

// replyLen returns how many bytes of file i a READ gets.
func (t *tree) replyLen(i inode, s Batches, in *fuse.ReadIn) int64 {
	return min(int64(in.Size), max(t.size(i, s)-int64(in.Offset), 0))
}

// readByteRanges fills dst from byte off on of a file that shows, of each of batches k, k+1, … of s, the shown bytes from byte from on.
func readByteRanges(s Batches, dst []byte, k uint64, off, from, shown int64) error {
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
