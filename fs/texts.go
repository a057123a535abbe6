package fs

import (
	"container/list"
	"fmt"
	"maps"
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
// What handles show is kept, up to most bytes, by when it was last read. A text beyond that is made again when its handle is read, as
// for a handle that another worker opened.
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
	open   map[uint64]*list.Element // by handle; guarded by mu, as what follows
	last   list.List                // of keptText, the one that was read last first
	bytes  int
}

// A keptText is what a handle shows.
type keptText struct {
	fh    uint64
	bytes []byte
}

// A memoryUse is the memory that readers make this process take, in bytes, of all that they may.
type memoryUse struct {
	budget, replies, ahead, texts, tables int64
	waiting                               int // requests that wait for a semaphore
	store                                 *StoreUse
	mapped, busy                          int64 // see Options.Remaps
}

// The low textBits of a handle are the length of its text.
const textBits = 32

// keep makes a text and keeps it for a new handle. The handle tells how long the text is.
func (t *texts) keep(i inode) (fh uint64) {
	shown := i.kind().entry().content.(text).show(t, i)
	fh = t.shared.TextHandles.Add(1)<<textBits | uint64(len(shown))
	t.hold(fh, shown)
	return fh
}

// hold keeps a text for a handle.
func (t *texts) hold(fh uint64, text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(fh)
	t.open[fh] = t.last.PushFront(keptText{fh, text})
	t.bytes += len(text)
	for t.bytes > t.most && t.last.Len() > 1 {
		t.drop(t.last.Back().Value.(keptText).fh)
	}
}

// of returns the text of a handle. ok is false if it is not kept.
func (t *texts) of(fh uint64) (text []byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.open[fh]
	if e == nil {
		return nil, false
	}
	t.last.MoveToFront(e)
	return e.Value.(keptText).bytes, true
}

func (t *texts) release(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(fh)
}

// drop is release for a caller that holds mu.
func (t *texts) drop(fh uint64) {
	if e := t.open[fh]; e != nil {
		t.bytes -= len(t.last.Remove(e).(keptText).bytes)
		delete(t.open, fh)
	}
}

// A text is a content that is made when a file is opened.
type text interface {
	content
	show(t *texts, i inode) []byte
}

type readmeText struct{}

func (readmeText) show(t *texts, _ inode) []byte            { return t.readme }
func (readmeText) size(t *texts, _ inode, _ Sequence) int64 { return int64(len(t.readme)) }

type cursorText struct{}

func (cursorText) show(t *texts, i inode) []byte {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next())
}

func (c cursorText) size(t *texts, i inode, _ Sequence) int64 { return int64(len(c.show(t, i))) }

type infoText struct{}

func (infoText) show(t *texts, i inode) []byte {
	s, _ := t.sequences.now(i.sequence(), 0) // readers of batches get the error
	if s == nil {
		return []byte{}
	}
	return s.Info()
}

func (infoText) size(t *texts, i inode, _ Sequence) int64 {
	s, _ := t.sequences.now(i.sequence(), 0)
	if s == nil {
		return 0
	}
	return s.InfoLen()
}

// Every number in status.json is as wide as the widest can be, so that the size of the file does not change between stat and read
// because one of them grew.
type statusText struct{}

func (c statusText) size(t *texts, i inode, _ Sequence) int64 { return int64(len(c.show(t, i))) }

func (statusText) show(t *texts, _ inode) []byte {
	t.making.Lock()
	defer t.making.Unlock()
	splits, idle := t.countedSplits()
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
	return fmt.Appendf(text, "  \"splits\": {%s\n  }\n}\n", strings.Join(splits, ","))
}

// countedSplits returns the entries of status.json for splits and for settings in use, sorted by name, and how many settings the kernel
// has forgotten whose cursor moved.
func (t *texts) countedSplits() (all []string, idle int) {
	byName := map[string]string{}
	t.sequences.all(func(number int, name, fault string) {
		entry := &t.shared.Sequences[number]
		reads, errors := entry.Reads.Load(), entry.Errors.Load()
		isSplit := number <= t.sequences.splits
		switch {
		case !isSplit && entry.Lookups.Load() == 0:
			idle++
		case isSplit || entry.Moved() || reads+errors > 0:
			byName[name] = fmt.Sprintf(`
    %s: {
      "cursor": %20d,
      "reads": %20d,
      "bytes": %20d,
      "given_back": %20d,
      "errors": %20d,
      "last_error": %s
    }`, jsontext.Quote(name), entry.Next(), reads, entry.Bytes.Load(), entry.GivenBack.Load(), errors, jsontext.Quote(fault))
		}
	})
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all, idle
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
