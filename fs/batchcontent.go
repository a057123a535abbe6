package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/header"
	"batchfs/fs/state"
	"batchfs/internal/failpoint"
)

// A batchContent is the content of files that show batches.
type batchContent struct {
	selector batchSelector
	format   header.Format

	// oneArray is true if a file shows a single array of its batches, whose index is in the inode.
	// Otherwise, it shows the main arrays or, with wholeSequence, all of them.
	oneArray bool
}

// A batchSelector determines which batches a file shows.
type batchSelector uint8

const (
	nextBatch     batchSelector = iota + 1 // the batch that the handle holds
	oneBatch                               // the batch whose number is the name of the file
	everyBatch                             // the first Spec.Steps batches
	wholeSequence                          // the first batches; the inode has their number
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
	case everyBatch:
		f.Batches = b.Spec().Steps
	case wholeSequence:
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
func (c batchContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	var timer state.ReadTimer
	if c.selector == nextBatch {
		timer = t.shared.BeginRead(r.inode.sequence(), r.Fh, r.Pid, r.Unique, r.waited)
	}
	for attempt := 1; ; attempt++ {
		part, err := t.locate(r)
		if err != nil {
			return nil, err
		}
		reply, err := c.getBytes(t, part, timer, r.buf)
		if err == nil || c.selector != nextBatch {
			return reply, err
		}
		t.handles.Rollback(r.Unique)
		if !part.list.Spec().FollowsChanges || !errors.Is(err, syscall.ESTALE) || attempt == maxReadAttempts {
			return nil, err
		}
		if _, err := part.split.LatestFor(part.batch, r.cancel); err != nil {
			return nil, err
		}
	}
}

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
	case r.buffer == nil, part.off == 0, r.buffer.sent.Load() == 0:
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
