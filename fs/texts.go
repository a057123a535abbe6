package fs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"batchfs/fs/state"
)

// texts are what each open handle of a live text shows. Beyond most bytes all is dropped, and made again when such a handle is read,
// as for a handle that another worker opened.
//
// Lock order: mu last.
type texts struct {
	most  int64
	mu    sync.Mutex
	open  map[uint64][]byte // by handle; guarded by mu
	bytes atomic.Int64      // written with mu held
}

func (t *texts) hold(fh uint64, text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes.Load()+int64(len(text)) > t.most {
		clear(t.open)
		t.bytes.Store(0)
	}
	t.bytes.Add(int64(len(text) - len(t.open[fh])))
	t.open[fh] = text
}

func (t *texts) get(fh uint64) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[fh]
}

func (t *texts) release(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes.Add(-int64(len(t.open[fh])))
	delete(t.open, fh)
}

// The low textBits of a handle are the length of its text.
const textBits = 32

// openText makes a text for a new handle.
func (t *tree) openText(i inode, cancel <-chan struct{}) (fh uint64) {
	shown := i.kind().entry().content.(text).show(t, i, cancel)
	fh = t.shared.TextHandles.Add(1)<<textBits | uint64(len(shown))
	t.texts.hold(fh, shown)
	return fh
}

// textOf returns what a text shows on a handle to a reader of byte off, and nil for other files and where the text would not be the
// one that was begun.
func (t *tree) textOf(i inode, fh, off uint64, cancel <-chan struct{}) []byte {
	content, isText := i.kind().entry().content.(text)
	if !isText {
		return nil
	}
	if !i.kind().isLiveText() {
		return content.show(t, i, cancel)
	}
	shown := t.texts.get(fh)
	size := fh & (1<<textBits - 1)
	switch {
	case shown != nil:
		return shown
	case off > 0 && off >= size:
		return []byte{}
	}
	shown = content.show(t, i, cancel)
	if off > 0 && uint64(len(shown)) != size {
		return nil
	}
	t.texts.hold(fh, shown)
	return shown
}

// A text is a content that is made when a file is opened.
type text struct {
	show func(t *tree, i inode, cancel <-chan struct{}) []byte
	len  func(t *tree, i inode) int64 // nil: the length of what is shown
}

func (x text) size(t *tree, i inode, _ Batches) int64 {
	if x.len != nil {
		return x.len(t, i)
	}
	return int64(len(x.show(t, i, nil)))
}

func (t *tree) cursor(i inode, _ <-chan struct{}) []byte {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next())
}

func (t *tree) info(i inode, cancel <-chan struct{}) []byte {
	s, _ := t.sequences.latestFor(i.sequence(), 0, cancel) // readers of batches get the error
	if s == nil {
		return []byte{}
	}
	return s.Info()
}

func (t *tree) infoLen(i inode) int64 {
	if s := t.sequence(i); s != nil {
		return s.InfoLen()
	}
	return 0
}

// Live is what status.json shows and only this package knows.
type Live struct {
	Shared        *state.Shared
	PrefetchBytes int64 // memory of prefetched batches
	TextBytes     int64 // memory of the texts that open files show
	BadNames      []BadName
	Splits        map[string]LiveSplit // splits, and settings in use, by path
	IdleSettings  int                  // settings that the kernel has forgotten, but whose cursor has moved
}

// A LiveSplit is a split, or settings in use.
type LiveSplit struct {
	*state.SequenceState
	LastError string
}

func (t *tree) live() Live {
	l := Live{
		Shared: t.shared, PrefetchBytes: t.prefetcher.used.Load(), TextBytes: t.texts.bytes.Load(), BadNames: *t.badNames.Load(),
		Splits: map[string]LiveSplit{},
	}
	for number := 1; number <= t.shared.SequencesUsed(); number++ {
		entry := &t.shared.Sequences[number]
		t.sequences.mu.Lock()
		used, name, fault := entry.Used(), entry.Name(), entry.LastError()
		t.sequences.mu.Unlock()
		isSplit := number <= t.sequences.splits
		switch {
		case !used:
		case !isSplit && entry.Lookups.Load() == 0:
			l.IdleSettings++
		case isSplit || entry.CursorMoved() || entry.Reads.Load()+entry.Errors.Load() > 0:
			l.Splits[name] = LiveSplit{entry, fault}
		}
	}
	return l
}

func (t *tree) status(inode, <-chan struct{}) []byte {
	t.makingStatus.Lock()
	defer t.makingStatus.Unlock()
	return t.o.Status.JSON(t.live())
}

func (t *tree) metrics(inode, <-chan struct{}) []byte {
	t.makingStatus.Lock()
	defer t.makingStatus.Unlock()
	return t.o.Status.Metrics(t.shared)
}
