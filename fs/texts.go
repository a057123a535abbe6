package fs

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A textCache holds the text of each open handle of a live text. If the texts would exceed
// maxBytes, it keeps only the newest. A missing text, for example of a handle that an earlier
// worker opened, is rendered again when it is read. A textCache is safe for concurrent use.
//
// Lock order: mu comes after all other locks.
type textCache struct {
	maxBytes int64
	mu       sync.Mutex
	byHandle map[uint64][]byte // guarded by mu
	bytes    atomic.Int64      // total length of the texts; written with mu held
}

func (c *textCache) put(fh uint64, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes.Load()+int64(len(text)) > c.maxBytes {
		clear(c.byHandle)
		c.bytes.Store(0)
	}
	c.bytes.Add(int64(len(text) - len(c.byHandle[fh])))
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

// textBits is the number of low bits of a text's handle that hold the length of the text, in bytes.
const textBits = 32

func (t *tree) openText(i inode, cancel <-chan struct{}) (fh uint64) {
	rendered := i.kind().entry().content.(textContent).render(t, i, cancel)
	fh = t.shared.TextHandles.Add(1)<<textBits | uint64(len(rendered))
	t.texts.put(fh, rendered)
	return fh
}

// textForRead returns the text of handle fh of file i, or nil if i is not a text. If the text is
// not cached, it renders a new one. If that has another length and off is not 0, it returns nil,
// because the reader may have the beginning of the old text.
func (t *tree) textForRead(i inode, fh, off uint64, cancel <-chan struct{}) []byte {
	content, isText := i.kind().entry().content.(textContent)
	if !isText {
		return nil
	}
	if !i.kind().isLiveText() {
		return content.render(t, i, cancel)
	}
	cached := t.texts.get(fh)
	size := fh & (1<<textBits - 1)
	switch {
	case cached != nil:
		return cached
	case off > 0 && off >= size:
		return []byte{} // the reader is at the end
	}
	rendered := content.render(t, i, cancel)
	if off > 0 && uint64(len(rendered)) != size {
		return nil
	}
	t.texts.put(fh, rendered)
	return rendered
}

// A textContent is rendered as a whole.
type textContent struct {
	render func(t *tree, i inode, cancel <-chan struct{}) []byte
	length func(BatchList) int64 // bytes; nil if only render knows it
}

func (c textContent) size(t *tree, i inode, s BatchList) int64 {
	switch {
	case c.length == nil:
		return int64(len(c.render(t, i, nil)))
	case s == nil: // the kernel has forgotten the sequence
		return 0
	}
	return c.length(s)
}

func (t *tree) cursor(i inode, _ <-chan struct{}) []byte {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next())
}

func (t *tree) info(i inode, cancel <-chan struct{}) []byte {
	s, _ := t.sequences.latestFor(i.sequence(), 0, cancel) // reads of batches report the error
	if s == nil {
		return []byte{}
	}
	return s.Info()
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
