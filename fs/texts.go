package fs

import (
	"bytes"
	_ "embed"
	"fmt"
	"hash/crc32"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"text/template"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
)

// A textCache holds the text of each open handle. If the texts would exceed maxBytes, it keeps only
// the newest. A missing text, for example of a handle that an earlier worker opened, is rendered
// again when it is read. A textCache is safe for concurrent use. No lock is taken while mu is held.
type textCache struct {
	maxBytes int64
	mu       sync.Mutex
	byHandle map[uint64][]byte // guarded by mu
	bytes    atomic.Int64      // total length of the texts; written with mu held
}

func (c *textCache) put(fh uint64, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes.Add(-int64(len(c.byHandle[fh])))
	delete(c.byHandle, fh)
	if c.bytes.Load()+int64(len(text)) > c.maxBytes {
		clear(c.byHandle)
		c.bytes.Store(0)
	}
	c.bytes.Add(int64(len(text)))
	c.byHandle[fh] = text
}

func (c *textCache) get(fh uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byHandle[fh]
}

func (c *textCache) release(fh uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes.Add(-int64(len(c.byHandle[fh])))
	delete(c.byHandle, fh)
}

// The handle of a text is made of:
//
//	bits 0-31   its length in bytes
//	bits 32-47  its hash
//	bits 48-63  a counter
const (
	textHashShift  = 32
	textCountShift = 48
)

// textLen returns the length of the text of a handle, in bytes.
func textLen(fh uint64) uint64 { return fh & (1<<textHashShift - 1) }

// describeText returns the bits of a handle that describe its text: the length and the hash.
func describeText(text []byte) uint64 {
	return uint64(crc32.ChecksumIEEE(text)&math.MaxUint16)<<textHashShift | uint64(len(text))
}

// isAtEnd reports whether a READ begins at or after the end of its text, but not at offset 0.
func isAtEnd(in *fuse.ReadIn) bool { return in.Offset > 0 && in.Offset >= textLen(in.Fh) }

// mustRender reports whether a READ of a text renders it again.
func (t *tree) mustRender(in *fuse.ReadIn) bool { return !isAtEnd(in) && t.texts.get(in.Fh) == nil }

func (t *tree) openText(i inode, cancel <-chan struct{}) (fh uint64, err error) {
	rendered := i.kind().entry().text.render(t, i, cancel)
	if rendered == nil {
		return 0, errForgotten
	}
	fh = t.shared.TextHandles.Add(1)<<textCountShift | describeText(rendered)
	t.texts.put(fh, rendered)
	return fh, nil
}

// A textContent is rendered as a whole.
type textContent struct {
	// render returns nil if the kernel has forgotten the sequence of the file: see errForgotten.
	render func(t *tree, i inode, cancel <-chan struct{}) []byte
	length func(BatchList) int64 // bytes; nil if only render knows it
}

var errTextGone = fmt.Errorf("the file has changed since it was opened, "+
	"and the old text is gone: open it again (%w)", syscall.ESTALE)

func (c textContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	text, err := c.textOf(t, r)
	if err != nil {
		return nil, err
	}
	return fuse.ReadResultData(r.buf[:copy(r.buf, text[min(r.Offset, uint64(len(text))):])]), nil
}

// textOf returns the text of the file of a READ. If it is not cached, textOf renders a new one. If
// that is another text and the READ does not begin at offset 0, it returns errTextGone, because the
// reader may have the beginning of the old text.
func (c textContent) textOf(t *tree, r readRequest) ([]byte, error) {
	if cached := t.texts.get(r.Fh); cached != nil {
		return cached, nil
	}
	if isAtEnd(r.ReadIn) {
		return nil, nil
	}
	rendered := c.render(t, r.inode, r.cancel)
	if rendered == nil {
		return nil, errForgotten
	}
	if r.Offset > 0 && describeText(rendered) != r.Fh&(1<<textCountShift-1) {
		return nil, errTextGone
	}
	t.texts.put(r.Fh, rendered)
	return rendered, nil
}

func (c textContent) size(t *tree, i inode, b BatchList) int64 {
	switch {
	case c.length == nil:
		return int64(len(c.render(t, i, nil)))
	case b == nil: // the kernel has forgotten the sequence
		return 0
	}
	return c.length(b)
}

//go:embed readme.tmpl
var readmeSource string

var readmeTemplate = template.Must(template.New("README").Funcs(template.FuncMap{"dims": array.ShapeText}).Parse(readmeSource))

func (t *tree) readme(inode, <-chan struct{}) []byte {
	var specs []*Spec
	for n := 1; n <= t.sequences.splitCount; n++ {
		specs = append(specs, t.sequences.peek(n).Current().Spec())
	}
	var text bytes.Buffer
	if err := readmeTemplate.Execute(&text, map[string]any{"Mountpoint": t.mountpoint, "Splits": specs}); err != nil {
		panic(err) // bug in the template
	}
	return text.Bytes()
}

func (t *tree) cursor(i inode, _ <-chan struct{}) []byte {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next())
}

func (t *tree) info(i inode, cancel <-chan struct{}) []byte {
	s := t.sequences.get(i.sequence())
	if s == nil {
		return nil
	}
	b, _ := s.LatestFor(0, cancel) // reads of batches report the error
	return b.Info()
}

// LiveStatus is the part of status.json that only package fs knows.
type LiveStatus struct {
	PrefetchBytes int64
	TextBytes     int64
	BadNames      []BadName // latest first
}

func (t *tree) status(inode, <-chan struct{}) []byte {
	t.statusMu.Lock()
	defer t.statusMu.Unlock()
	return t.opts.Status.JSON(LiveStatus{t.prefetcher.bufferBytes.Load(), t.texts.bytes.Load(), *t.badNames.Load()})
}

func (t *tree) metrics(inode, <-chan struct{}) []byte {
	t.statusMu.Lock()
	defer t.statusMu.Unlock()
	return t.opts.Status.Metrics(t.shared)
}
