package fs

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/guard"
	"batchfs/fs/header"
	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/failpoint"
	"batchfs/internal/process"
)

// The guard calls CostOfRead, HandleRead and, if the request succeeds in time, Succeeded. A READ of
// batches takes three steps: [tree.locate] finds the bytes, [batchContent.getBytes] gets them, and
// [tree.account] counts them. Once they are sent, [reply.Done] prefetches the next batches.

// A readRequest is a READ.
type readRequest struct {
	*fuse.ReadIn
	inode  inode
	waited time.Duration   // for admission
	buf    []byte          // space for the bytes requested
	cancel <-chan struct{} // closed when the request is abandoned
}

// fillsPageCache reports whether a READ is for the page cache. Any other READ has a lock owner.
func fillsPageCache(in *fuse.ReadIn) bool { return in.ReadFlags&fuse.READ_LOCKOWNER == 0 }

func (t *tree) CostOfRead(in *fuse.ReadIn) guard.Cost {
	i := inode(in.NodeId)
	rendersInfo := i.kind() == infoFile && t.mustRender(in)
	c, s := t.cost(i, rendersInfo || t.needsSequence(i)), t.sequences.peek(i.sequence())
	if fillsPageCache(in) {
		c.Pages = guard.Pages{From: in.Offset, To: in.Offset + uint64(in.Size)}
	}
	switch k := i.kind(); {
	case !k.isNext() && !k.isNumbered(): // a text
	case s == nil:
		c.Rows, c.ReplyBytes = int64(in.Size), int(in.Size) // a row has at least one byte
	default:
		c.Rows, c.ReplyBytes = t.costOfBytes(i, s.Current(), in)
	}
	return c
}

// costOfBytes returns how many rows and bytes of b a READ gets. In a file with several arrays, it
// counts bytes as rows of the first one, up to all rows of the batches that the READ touches.
func (t *tree) costOfBytes(i inode, b BatchList, in *fuse.ReadIn) (rows int64, bytes int) {
	if i.outdated(b) {
		return 0, 0
	}
	batch, k := &b.Spec().Batch, i.kind()
	row := batch.RowBytes(0)
	if k.showsOneArray() {
		row = batch.RowBytes(i.array())
	}
	n, touched := t.replyLen(i, b, in), int64(1)
	rows = (n + row - 1) / row
	switch {
	case k == tokensFile:
		return rows, int(n)
	case k.spansBatches():
		begin := int64(in.Offset)
		if k.batches().format != raw {
			begin -= headerBytes
		}
		_, size := k.batches().byteRange(i, b)
		touched = max(begin+n-1, 0)/size - max(begin, 0)/size + 1
	}
	return min(rows, touched*int64(batch.Arrays[0].Shape[0])), int(n)
}

func (t *tree) HandleRead(
	cancel <-chan struct{}, waited time.Duration, in *fuse.ReadIn, buf []byte,
) (fuse.ReadResult, fuse.Status) {
	i := inode(in.NodeId)
	k := i.kind()
	if (k.isNext() || k.isText()) && fillsPageCache(in) {
		if k.isNext() {
			t.logUnmappable(i, in.Pid)
		}
		return nil, fuse.EINVAL
	}
	// For files of batches, this is batchContent.read, below.
	reply, err := k.entry().content.read(t, readRequest{in, i, waited, buf, cancel})
	if err != nil {
		return nil, t.FailRequest(in.Unique, in.NodeId, err)
	}
	return reply, fuse.OK
}

// logUnmappable logs which program tried to map next*, because the SIGBUS that it gets has no
// explanation.
func (t *tree) logUnmappable(i inode, pid uint32) {
	comm, _ := os.ReadFile(process.Dir(int(pid)) + "/comm")
	t.log.tryLog(slog.LevelWarn, "a program mapped a file that cannot be mapped, and gets SIGBUS, or called sendfile with it, and gets EINVAL: "+
		"it should read the file, or map batch/<k> or batches.npy instead",
		"file", i.kind().entry().name, "pid", pid, "program", strings.TrimSpace(string(comm)))
}

// A batchContent is the content of files that show batches.
type batchContent struct {
	selector batchSelector
	format   header.Format

	// oneArray is true if a file shows a single array of its batches, whose index is in the inode.
	// Otherwise, it shows the main arrays or, with countInInode or as safetensors, all of them.
	oneArray bool
}

// A batchSelector determines which batches a file shows.
type batchSelector uint8

const (
	nextBatch    batchSelector = iota + 1 // the batch that the handle holds
	oneBatch                              // the batch whose number is the name of the file
	firstSteps                            // the first Spec.Steps batches
	countInInode                          // the first batches; the inode has their number
)

const (
	raw         = header.FormatRaw
	npy         = header.FormatNPY
	safetensors = header.FormatSafetensors

	headerBytes = header.Bytes
)

func (c batchContent) frame(i inode, b BatchList) header.Frame {
	f := header.Frame{Format: c.format, Batch: &b.Spec().Batch, Array: header.MainArrays}
	if c.oneArray {
		f.Array = i.array()
	}
	switch c.selector {
	case firstSteps:
		f.Batches = b.Spec().Steps
	case countInInode:
		f.Batches, f.Array = i.rest()+1, header.AllArrays
	}
	return f
}

func (c batchContent) size(_ *tree, i inode, b BatchList) int64 { return c.frame(i, b).Size() }

func (c batchContent) byteRange(i inode, b BatchList) (from, size int64) {
	return c.frame(i, b).ByteRange()
}

func (c batchContent) header(i inode, b BatchList, k uint64) []byte {
	return c.frame(i, b).Header(k, b.Spec().Metadata)
}

// maxReadAttempts limits how often a READ is attempted if its tokens keep changing.
const maxReadAttempts = 10

// read locates the bytes of a READ and gets them from the same BatchList. If the file is one of
// next*, the split follows changes, and the tokens change in between, it starts over with the new
// tokens.
func (c batchContent) read(t *tree, r readRequest) (reply fuse.ReadResult, _ error) {
	var timer state.ReadTimer
	if c.selector == nextBatch {
		timer = t.shared.BeginRead(r.inode.sequence(), r.Fh, r.Pid, r.Unique, r.waited)
		defer func() {
			if reply == nil { // there was an error or a panic
				timer.Discard()
			}
		}()
	}
	for attempt := 1; ; attempt++ {
		part, err := t.locate(r)
		if err != nil {
			t.handles.Rollback(r.Unique) // an earlier worker may have taken a number
			return nil, err
		}
		if reply, err = c.getBytes(t, part, timer, r.buf); err == nil {
			return reply, nil
		}
		err = outdatedError(part.list, err)
		if c.selector != nextBatch {
			return nil, err
		}
		t.handles.Rollback(r.Unique)
		if err != state.ErrOutdated || attempt == maxReadAttempts {
			return nil, err
		}
		if _, err := part.sequence.LatestFor(part.batch, r.cancel); err != nil {
			return nil, err
		}
	}
}

type batchJSONContent struct{}

func (batchJSONContent) size(_ *tree, _ inode, b BatchList) int64 { return b.BatchJSONLen() }

func (batchJSONContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	return t.compute(r, func(p filePart, dst []byte) error { return p.list.ReadBatchJSON(dst, p.batch, p.off) })
}

type tokensContent struct{}

func (tokensContent) size(_ *tree, _ inode, b BatchList) int64 { return b.Spec().TokensFileSize }

func (tokensContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	return t.compute(r, func(p filePart, dst []byte) error { return p.list.ReadTokens(dst, p.off) })
}

// compute replies to a READ with the bytes that fill writes to dst.
func (t *tree) compute(r readRequest, fill func(p filePart, dst []byte) error) (fuse.ReadResult, error) {
	part, err := t.locate(r)
	if err == nil && part.len > 0 {
		err = outdatedError(part.list, fill(part, r.buf[:part.len]))
	}
	return fuse.ReadResultData(r.buf[:part.len]), err
}

// outdatedError returns err, or state.ErrOutdated if err means that token files have changed and
// the split follows changes, because the error of a changed file says to mount again.
func outdatedError(b BatchList, err error) error {
	if b.Spec().FollowsChanges && errors.Is(err, syscall.ESTALE) {
		return state.ErrOutdated
	}
	return err
}

// A filePart is the part of a file that a READ gets.
type filePart struct {
	inode    inode
	sequence Sequence
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
	b, err := s.Latest(r.cancel)
	if err != nil {
		return filePart{}, err
	}
	// The handle of a numbered file is the version that Open saw. It is compared too, because an
	// inode in batch/ has only the low bits of its version. Do so before the size is used: a reader
	// of old tokens must get an error, not the end of a shorter new file.
	if i.kind().isNumbered() && r.Fh != uint64(b.Spec().Version) || i.outdated(b) {
		return filePart{}, state.ErrOutdated
	}
	part := filePart{inode: i, sequence: s, list: b, batch: i.firstBatch(), off: int64(r.Offset), len: t.replyLen(i, b, r.ReadIn)}
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
	part.batch, err = t.handles.AssignBatch(state.NextRead{
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

// A reply is the fuse.ReadResult of a READ from batches.
type reply struct {
	parts       [2][]byte
	splitNumber int
	timer       state.ReadTimer
	prefetcher  *prefetcher
	reader      *sequentialReader // may be nil
	buffer      *batchBuffer      // prefetched batch that parts[1] aliases, read-locked; may be nil

	filePart
	firstBegun uint64 // first batch whose first byte is in the reply; end if there is none
	end        uint64 // batch after the last with bytes in the reply; 0 if there is none
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// getBytes returns the bytes of a part of a file. If they were not prefetched, it computes them in
// buf. The reply may alias buf.
func (c batchContent) getBytes(t *tree, part filePart, timer state.ReadTimer, buf []byte) (fuse.ReadResult, error) {
	buf = buf[:part.len]
	if len(buf) == 0 {
		timer.Discard()
		return fuse.ReadResultData(buf), nil
	}
	failpoint.Hit("read")
	r := replies.Get().(*reply)
	*r = reply{prefetcher: t.prefetcher, splitNumber: t.sequences.splitOf(part.inode.sequence()), timer: timer, filePart: part}
	rest, off := c.copyHeader(&part, buf)
	from, size := c.byteRange(part.inode, part.list)
	if len(rest) > 0 && !part.inode.kind().spansBatches() {
		r.reader, r.buffer = t.prefetcher.acquireBuffer(part.list, part.batch)
	}
	r.parts = [2][]byte{buf}
	if r.buffer != nil {
		r.parts = [2][]byte{buf[:len(buf)-len(rest)], r.buffer.bytes[from+off:][:len(rest)]}
	}
	var err error
	switch {
	case r.buffer == nil && len(rest) > 0:
		err = readByteRanges(part.list, rest, part.batch, off, from, size)
	case r.buffer == nil, part.off == 0, r.buffer.isUnsent():
		// The reply is a header, or the beginning of a prefetched batch. As no token file is read,
		// nothing else notices that it has changed.
		err = part.list.Check(part.batch)
	}
	if err != nil {
		if r.buffer != nil {
			r.buffer.RUnlock()
		}
		return nil, err
	}
	if end := off + int64(len(rest)); end > off {
		r.firstBegun, r.end = part.batch+uint64((off+size-1)/size), part.batch+uint64((end-1)/size)+1
	}
	return r, nil
}

// copyHeader copies to buf the bytes of the header that are in the part. It returns the rest of
// buf, and the offset of the rest in the file, not counting the header.
func (c batchContent) copyHeader(p *filePart, buf []byte) (rest []byte, off int64) {
	switch {
	case c.format == raw:
		return buf, p.off
	case p.off >= headerBytes:
		return buf, p.off - headerBytes
	}
	n := copy(buf, c.header(p.inode, p.list, p.batch)[p.off:])
	return buf[n:], p.off + int64(n) - headerBytes
}

// readByteRanges fills dst with the bytes at offset off of a file, not counting its header. The
// file consists of the bytes [from, from+size) of each of the batches k, k+1, …
func readByteRanges(b BatchList, dst []byte, k uint64, off, from, size int64) error {
	if size == b.Spec().Batch.Bytes() { // whole batches
		return b.Read(dst, k, off)
	}
	for k, off = k+uint64(off/size), off%size; len(dst) > 0; k, off = k+1, 0 {
		n := min(int64(len(dst)), size-off)
		if err := b.Read(dst[:n], k, from+off); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

// Slices returns the bytes to send. Without it, go-fuse would call Done before sending them.
func (r *reply) Slices() ([][]byte, fuse.Status) { return r.parts[:], fuse.OK }

func (r *reply) Bytes([]byte) ([]byte, fuse.Status) { return slices.Concat(r.parts[:]...), fuse.OK }

func (r *reply) Size() int { return len(r.parts[0]) + len(r.parts[1]) }

// Succeeded commits the batch number of a READ, and counts the READ once, even if the kernel sends
// it again.
func (t *tree) Succeeded(in *fuse.ReadIn, result fuse.ReadResult) {
	i := inode(in.NodeId)
	if (i.kind().isNext() || i.kind().isNumbered()) && result.Size() > 0 {
		t.shared.SetFailing(i.sequence(), false)
	}
	r, ok := result.(*reply)
	if !ok { // the reply has no bytes of batches
		return
	}
	if i.kind().isNext() {
		t.handles.Commit(in.Unique)
	}
	t.shared.CountOnce(in.Unique, func() { t.account(r) })
}

// account adds a reply to the counters of its sequence and of the sources of its split.
func (t *tree) account(r *reply) {
	seq := &t.shared.Sequences[r.inode.sequence()]
	seq.Reads.Add(1)
	seq.Bytes.Add(uint64(r.Size()))
	if r.buffer != nil {
		seq.Prefetched.Add(1)
	}
	if r.end == 0 {
		return
	}
	seq.RecordBatch(r.end - 1)
	if r.firstBegun == r.end {
		return
	}
	seq.Begun.Add(r.end - r.firstBegun)
	sources := &t.shared.RowsBySource[r.splitNumber]
	t.recordPhase(r.splitNumber, r.list.Spec().Phases, r.end-1)
	for source := range min(len(r.list.Spec().SourceNames), state.MaxSources) {
		for k := r.firstBegun; k < r.end; k++ {
			sources[source].Rows.Add(r.list.RowsOf(source, k))
		}
	}
}

// recordPhase records the phase of batch k of a split.
func (t *tree) recordPhase(split int, phases []Phase, k uint64) {
	i := sort.Search(len(phases)-1, func(i int) bool { return phases[i+1].Batch > k })
	if len(phases) > 1 && i != t.shared.Phase(split) {
		t.shared.SetPhase(split, i, phases[i].Weights)
	}
}

func (r *reply) Done() {
	sent := *r
	*r = reply{}
	replies.Put(r)
	sent.timer.End()
	if sent.buffer != nil {
		sent.buffer.sent.Add(int64(len(sent.parts[1])))
		sent.buffer.RUnlock()
	}
	if sent.reader != nil {
		sent.prefetcher.run(sent.reader, sent.splitNumber)
	}
}

func (t *tree) Discard(result fuse.ReadResult) {
	if r, ok := result.(*reply); ok {
		r.timer.Discard()
		*r = reply{buffer: r.buffer} // Done only unlocks the buffer
		r.Done()
	}
}
