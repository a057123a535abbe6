package fs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func (t *tree) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := inode(in.NodeId)
	c, err := t.watch.begin(in.Unique, i)
	if err != nil {
		return t.fault(i, err)
	}
	defer t.watch.end(c)
	switch k := i.kind(); {
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case t.table.closing.Load() != 0:
		return fuse.Status(syscall.ESHUTDOWN)
	case k.isNext():
		var state uint64
		if in.Flags&syscall.O_NONBLOCK != 0 {
			state = peeks
			t.logPeek(i, in.Pid)
		}
		fh, ok := t.table.open(i, state, in.Unique)
		if !ok {
			t.fullLogged.Do(func() { t.log.Error("too many open handles of next: opens fail with ENFILE", "most", maxHandles) })
			return fuse.Status(syscall.ENFILE)
		}
		out.Fh, out.OpenFlags = fh, fuse.FOPEN_DIRECT_IO|fuse.FOPEN_NOFLUSH
	case k.isLiveText():
		out.Fh, out.OpenFlags = t.openText(i, t.sequence(i)), fuse.FOPEN_DIRECT_IO|fuse.FOPEN_NOFLUSH
	default:
		if k.isNumbered() {
			s, err := t.sequences.now(i.sequence())
			if err != nil {
				return t.fault(i, err)
			}
			if i.outdated(s) {
				return fuse.Status(syscall.ESTALE) // upon which the kernel looks the path up again
			}
			out.Fh = s.Changes
			if k == batchJSON {
				out.Fh = t.openText(i, s)
			}
		}
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	}
	return fuse.OK
}

func (t *tree) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch k := inode(in.NodeId).kind(); {
	case k.isNext():
		t.table.release(in.Fh)
	case k.isLiveText(), k == batchJSON:
		t.textMu.Lock()
		delete(t.texts, in.Fh)
		t.textMu.Unlock()
	}
}

// openText keeps what the file shows now for the life of the handle, which tells how long that is.
func (t *tree) openText(i inode, s *Sequence) (fh uint64) {
	text := t.text(i, s)
	t.textMu.Lock()
	defer t.textMu.Unlock()
	t.opened++
	fh = t.opened<<textBits | uint64(min(len(text), 1<<textBits-1))
	t.texts[fh] = text
	return fh
}

// textBits are those of a handle of a text in which its length stands, or the greatest that they have room for.
const textBits = 24

func (t *tree) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	i := inode(in.NodeId)
	k := i.kind()
	// What changes from handle to handle cannot lie in the page cache, which all handles share. Only read(2) comes with
	// the owner of the handle's locks; a read for the page cache (sendfile, or a private mapping) has none.
	if (k.isNext() || k.isLiveText()) && in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		return nil, fuse.EINVAL
	}
	c, err := t.watch.begin(in.Unique, i)
	if err != nil {
		return nil, t.fault(i, err)
	}
	defer t.watch.end(c)
	defer t.panicked()
	if text := t.openedText(i, in.Fh, in.Offset); text != nil {
		off := min(in.Offset, uint64(len(text)))
		return fuse.ReadResultData(buf[:copy(buf, text[off:])]), fuse.OK
	}
	s := t.sequence(i)
	// Asked of the handle, as the changes that are part of an inode come round again, and before its size: the end of
	// what is there now is none to who reads what was.
	if k.isLiveText() || k.isNumbered() && in.Fh != s.Changes {
		return nil, t.fault(i, errOutdated)
	}
	off := int64(in.Offset)
	size := t.size(i, s)
	buf = buf[:min(int64(len(buf)), max(size-off, 0))]
	if len(buf) == 0 {
		return fuse.ReadResultData(nil), fuse.OK
	}
	var r *reply
	if k.isNext() {
		r, err = t.readNext(i, in, c, span{off, int64(len(buf)), size}, buf)
	} else {
		r, err = t.read(i, s, i.first(), off, buf)
	}
	if err != nil {
		return nil, t.fault(i, err)
	}
	return r, fuse.OK
}

var errOutdated = fmt.Errorf("the token files changed while they were read: open the file again, next from its beginning (%w)", syscall.ESTALE)

// readNext reads a span of the batch that a handle holds. At the beginning of a batch it goes on with other tokens where
// they changed and are followed.
func (t *tree) readNext(i inode, in *fuse.ReadIn, c *call, r span, buf []byte) (*reply, error) {
	cursor := &t.table.states[i.sequence()].cursor
	if !i.kind().isRaw() && r.off+r.len <= stdioBlock {
		// A header alone shows no tokens that would show that they changed.
		if _, err := t.sequences.now(i.sequence()); err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		s := t.sequence(i)
		number, ok := t.table.number(in.Fh, cursor, in.Unique, r, s.Changes)
		if !ok {
			return nil, errOutdated
		}
		t.watch.took(c, in.Fh, cursor, number, r)
		reply, err := t.read(i, s, number, r.off, buf)
		if err == nil {
			return reply, nil
		}
		t.watch.failed(c)
		if !s.Follows || !errors.Is(err, syscall.ESTALE) || try == maxTries {
			return nil, err
		}
		if _, err := t.sequences.now(i.sequence()); err != nil {
			return nil, err
		}
	}
}

// Tokens that change so often while they are read are not served.
const maxTries = 10

// openedText is what a file without batches shows on a handle to who reads it from off on, and nil for the others.
func (t *tree) openedText(i inode, fh, off uint64) []byte {
	s := t.sequence(i)
	if !i.kind().isLiveText() && i.kind() != batchJSON {
		return t.text(i, s)
	}
	t.textMu.Lock()
	text, kept := t.texts[fh]
	t.textMu.Unlock()
	if kept {
		return text
	}
	// It was opened in another process, and what is made here may be another text.
	size := fh & (1<<textBits - 1)
	if off > 0 && off >= size {
		return []byte{}
	}
	if i.outdated(s) {
		return nil
	}
	if text = t.text(i, s); off > 0 && uint64(len(text)) != size {
		return nil
	}
	t.textMu.Lock()
	t.texts[fh] = text
	t.textMu.Unlock()
	return text
}

// read answers with the bytes from off on of a file that begins with batch number of s, as many as buf has, which lie
// within the file. It may use buf for them.
func (t *tree) read(i inode, s *Sequence, number uint64, off int64, buf []byte) (*reply, error) {
	cut("read")
	r := replies.Get().(*reply)
	rest, k := buf, i.kind()
	if !k.isRaw() {
		if off < stdioBlock {
			n := copy(buf, s.header(k, number)[off:])
			rest, off = buf[n:], off+int64(n)
		}
		off -= stdioBlock
	}
	if len(rest) > 0 && !k.isBatches() {
		r.ahead = &t.ahead
		r.stream, r.ready = t.ahead.asked(s, number)
	}
	if r.ready != nil {
		// What is ready is of the tokens as they were.
		if now, err := t.sequences.now(i.sequence()); err != nil || now != s {
			r.ready.RUnlock()
			r.ready = nil
		}
	}
	if r.ready != nil {
		r.parts = [2][]byte{buf[:len(buf)-len(rest)], r.ready.bytes[off:][:len(rest)]}
	} else {
		r.parts = [2][]byte{buf}
		if len(rest) > 0 {
			if err := s.Read(rest, number, off); err != nil {
				return nil, err
			}
		}
	}
	state := &t.table.states[i.sequence()]
	state.reads.Add(1)
	state.bytes.Add(uint64(len(buf)))
	return r, nil
}

// panicked is deferred by a read. What it panicked at may be of this process, which then gives up: the read is sent again, to
// another.
func (t *tree) panicked() {
	if r := recover(); r != nil {
		t.log.Error("a read panicked; it is tried again in another process", "panic", r, "stack", string(debug.Stack()))
		t.giveUp()
		runtime.Goexit() // without an answer
	}
}

func (t *tree) logPeek(i inode, pid uint32) {
	t.peekLogged.Do(func() {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		t.log.Info("next was opened with O_NONBLOCK: such a handle looks at the batch that comes next and takes none (said once)",
			"split", t.sequence(i).Name, "pid", pid, "program", strings.TrimSpace(string(comm)))
	})
}
