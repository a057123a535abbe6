package fs

import (
	"container/list"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"batchfs/fs/state"
	"batchfs/internal/jsontext"
)

// texts are the files of text: what they show, and what each open handle of a live one shows.
//
// What handles show is kept, up to most bytes of it. A text that was let go is made again when its handle is read, as for a handle
// that another process opened.
//
// Lock order: mu last.
type texts struct {
	readme         []byte
	programVersion string
	began          time.Time
	shared         *state.Shared
	sequences      *sequences
	most           int // bytes of texts that are kept, unless the one that was read last is longer
	memory         func() memoryUse

	making sync.Mutex // held while status.json is made, which may be long: one at a time; before every other lock
	mu     sync.Mutex
	open   map[uint64]*keptText   // what each open handle shows; guarded by mu, as all below and the keptTexts are
	infos  map[Sequence]*keptText // the info.json that are kept: the handles of a Sequence share one
	last   list.List              // of the *keptText that are kept, the one that was read last first
	bytes  int                    // of those
}

// A memoryUse is the memory that readers make this process take, in bytes, of all that they may.
type memoryUse struct {
	budget, replies, ahead, texts, tables int64
	waiting                               int // requests that wait for a semaphore
	store                                 *StoreUse
	mapped, busy                          int64 // see Options.Remaps
}

// A keptText is what one handle shows, or several of one info.json.
type keptText struct {
	bytes   []byte   // nil: it was let go
	info    Sequence // whose info.json it is, or nil
	handles int      // that show it
	at      *list.Element
}

// textBits are those of a handle in which the length of its text stands.
const textBits = 32

// keep makes a text and keeps it for a new handle. The handle tells how long the text is.
func (t *texts) keep(i inode) (fh uint64) {
	text, info := i.kind().entry().content.(text).show(t, i)
	fh = t.shared.TextHandles.Add(1)<<textBits | uint64(len(text))
	t.hold(fh, text, info)
	return fh
}

// hold keeps a text for a handle. info is the Sequence whose info.json it is, or nil.
func (t *texts) hold(fh uint64, text []byte, info Sequence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(fh)
	k := t.infos[info]
	if k == nil {
		k = &keptText{bytes: text, info: info}
		k.at = t.last.PushFront(k)
		t.bytes += len(text)
		if info != nil {
			t.infos[info] = k
		}
	}
	k.handles++
	t.open[fh] = k
	for t.bytes > t.most && t.last.Len() > 1 {
		t.letGo(t.last.Back().Value.(*keptText))
	}
}

// letGo forgets a text. Its handles stay open. The caller holds mu.
func (t *texts) letGo(k *keptText) {
	t.last.Remove(k.at)
	t.bytes -= len(k.bytes)
	delete(t.infos, k.info)
	k.bytes = nil
}

// of returns the text of a handle. ok is false if it was let go, or another process opened the handle.
func (t *texts) of(fh uint64) (text []byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.open[fh]
	if k == nil || k.bytes == nil {
		return nil, false
	}
	t.last.MoveToFront(k.at)
	return k.bytes, true
}

func (t *texts) release(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(fh)
}

// drop is release for a caller that holds mu.
func (t *texts) drop(fh uint64) {
	k := t.open[fh]
	if k == nil {
		return
	}
	delete(t.open, fh)
	if k.handles--; k.handles == 0 && k.bytes != nil {
		t.letGo(k)
	}
}

// A text is a content that is made when a file is opened.
type text interface {
	content
	// show returns the text, and the Sequence whose info.json it is, or nil.
	show(t *texts, i inode) ([]byte, Sequence)
}

type readmeText struct{}

func (readmeText) size(t *texts, _ inode, _ Sequence) int64  { return int64(len(t.readme)) }
func (readmeText) show(t *texts, _ inode) ([]byte, Sequence) { return t.readme, nil }

type cursorText struct{}

func (c cursorText) size(t *texts, i inode, _ Sequence) int64 {
	text, _ := c.show(t, i)
	return int64(len(text))
}

func (cursorText) show(t *texts, i inode) ([]byte, Sequence) {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next()), nil
}

type infoText struct{}

func (infoText) size(t *texts, i inode, _ Sequence) int64 {
	if s, _ := t.sequences.now(i.sequence(), 0); s != nil {
		return s.InfoLen()
	}
	return 0
}

func (infoText) show(t *texts, i inode) ([]byte, Sequence) {
	s, _ := t.sequences.now(i.sequence(), 0) // an error is for those who read batches
	if s == nil {
		return []byte{}, nil
	}
	t.mu.Lock()
	if k := t.infos[s]; k != nil {
		defer t.mu.Unlock()
		return k.bytes, s
	}
	t.mu.Unlock()
	return s.Info(), s
}

// Every number in status.json is as wide as the widest can be, so that the size of the file does not change between stat and read
// because one of them grew.
type statusText struct{}

func (c statusText) size(t *texts, i inode, _ Sequence) int64 {
	text, _ := c.show(t, i)
	return int64(len(text))
}

func (statusText) show(t *texts, _ inode) ([]byte, Sequence) {
	type counted struct {
		name, fault                             string
		cursor, reads, bytes, givenBack, errors uint64
	}
	t.making.Lock()
	defer t.making.Unlock()
	var all []counted
	idle := 0 // settings that the kernel has forgotten, with a cursor that moved
	t.sequences.all(func(number int, name, fault string) {
		entry := &t.shared.Sequences[number]
		c := counted{name, fault, entry.Next(), entry.Reads.Load(), entry.Bytes.Load(), entry.GivenBack.Load(), entry.Errors.Load()}
		switch {
		case number > t.sequences.splits && t.shared.Lookups(number) == 0:
			idle++
		case number <= t.sequences.splits || entry.Moved() || c.reads+c.errors > 0:
			all = append(all, c)
		}
	})
	slices.SortFunc(all, func(a, b counted) int { return strings.Compare(a.name, b.name) })
	m := t.memory()
	t.mu.Lock()
	m.texts = int64(t.bytes)
	t.mu.Unlock()
	text := fmt.Appendf(nil, `{
  "version": %s,
  "pid": %20d,
  "workers": %20d,
  "uptime_seconds": %20d,
  "resident_bytes": %20d,
  "memory": {
    "budget_bytes": %20d,
    "reply_bytes": %20d,
    "ahead_bytes": %20d,
    "text_bytes": %20d,
    "table_bytes": %20d
  },
  "waiting": %20d,
  "idle_settings": %20d,
  "remap": {
    "mapped": %20d,
    "busy": %20d,
    "advice": %-26s
  },
`,
		jsontext.Quote(t.programVersion), os.Getpid(), t.shared.Workers.Load(), int64(time.Since(t.began).Seconds()), residentBytes(),
		m.budget, m.replies, m.ahead, m.texts, m.tables, m.waiting, idle, m.mapped, m.busy, jsontext.Quote(RemapAdvice(m.mapped, m.busy)))
	if u := m.store; u != nil {
		text = fmt.Appendf(text, `  "store": {
    "requests": %20d,
    "fetched_bytes": %20d,
    "hits": %20d,
    "waits": %20d,
    "waited_ms": %20d,
    "unkept": %20d,
    "memory_bytes": %20d
  },
`, u.Requests, u.Bytes, u.Hits, u.Waits, u.Waited.Milliseconds(), u.Unkept, u.Memory)
	}
	text = append(text, `  "splits": {`...)
	for n, c := range all {
		if n > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, `
    %s: {
      "cursor": %20d,
      "reads": %20d,
      "bytes": %20d,
      "given_back": %20d,
      "errors": %20d,
      "last_error": %s
    }`,
			jsontext.Quote(c.name), c.cursor, c.reads, c.bytes, c.givenBack, c.errors, jsontext.Quote(c.fault))
	}
	return append(text, "\n  }\n}\n"...), nil
}

// RemapAdvice is the setting that is faster where many reads under access remap find another one mapping, or empty.
func RemapAdvice(mapped, busy int64) string {
	if busy > mapped/9 {
		return `memory.access = "pread"`
	}
	return ""
}

// residentBytes is this process's resident memory, or 0 where the kernel does not say.
func residentBytes() int64 {
	statm, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
