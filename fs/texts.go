package fs

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"batchfs/internal/jsontext"
)

// texts are what each open handle of a live text shows. Beyond most bytes all is dropped, and made again when such a handle is read,
// as for a handle that another worker opened.
//
// Lock order: mu last.
type texts struct {
	most  int
	mu    sync.Mutex
	open  map[uint64][]byte // by handle; guarded by mu, as bytes
	bytes int
}

func (t *texts) hold(fh uint64, text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes+len(text) > t.most {
		clear(t.open)
		t.bytes = 0
	}
	t.bytes += len(text) - len(t.open[fh])
	t.open[fh] = text
}

func (t *texts) get(fh uint64) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[fh]
}

func (t *texts) used() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

func (t *texts) release(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes -= len(t.open[fh])
	delete(t.open, fh)
}

// The low textBits of a handle are the length of its text.
const textBits = 32

// openText makes a text for a new handle.
func (t *tree) openText(i inode) (fh uint64) {
	shown := i.kind().entry().content.(text).show(t, i)
	fh = t.shared.TextHandles.Add(1)<<textBits | uint64(len(shown))
	t.texts.hold(fh, shown)
	return fh
}

// textOf returns what a text shows on a handle to a reader of byte off, and nil for other files and where the text would not be the
// one that was begun.
func (t *tree) textOf(i inode, fh, off uint64) []byte {
	content, isText := i.kind().entry().content.(text)
	if !isText {
		return nil
	}
	if !i.kind().isLiveText() {
		return content.show(t, i)
	}
	shown := t.texts.get(fh)
	size := fh & (1<<textBits - 1)
	switch {
	case shown != nil:
		return shown
	case off > 0 && off >= size:
		return []byte{}
	}
	shown = content.show(t, i)
	if off > 0 && uint64(len(shown)) != size {
		return nil
	}
	t.texts.hold(fh, shown)
	return shown
}

// A text is a content that is made when a file is opened.
type text struct {
	show func(t *tree, i inode) []byte
	len  func(t *tree, i inode) int64 // nil: the length of what is shown
}

func (x text) size(t *tree, i inode, _ Sequence) int64 {
	if x.len != nil {
		return x.len(t, i)
	}
	return int64(len(x.show(t, i)))
}

func (t *tree) cursor(i inode) []byte {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next())
}

func (t *tree) info(i inode) []byte {
	s, _ := t.sequences.now(i.sequence(), 0) // readers of batches get the error
	if s == nil {
		return []byte{}
	}
	return s.Info()
}

func (t *tree) infoLen(i inode) int64 {
	s, _ := t.sequences.now(i.sequence(), 0)
	if s == nil {
		return 0
	}
	return s.InfoLen()
}

func (t *tree) status(inode) []byte {
	t.makingStatus.Lock()
	defer t.makingStatus.Unlock()
	splits, idle := t.countedSplits()
	mapped, busy := t.o.Remaps()
	replies, waiting := t.limits.Use()
	members := []any{
		"version", t.o.ProgramVersion,
		"pid", os.Getpid(),
		"workers", t.shared.Workers.Load(),
		"uptime_seconds", int64(time.Since(time.Unix(0, t.shared.Began)).Seconds()),
		"resident_bytes", residentBytes(),
		"memory", object(2,
			"budget_bytes", t.o.Budget,
			"reply_bytes", replies,
			"ahead_bytes", t.prefetcher.memory(),
			"text_bytes", t.texts.used(),
			"table_bytes", t.o.TableBytes()),
		"waiting", waiting,
		"idle_settings", idle,
		"remap", object(2,
			"mapped", mapped,
			"busy", busy,
			"advice", RemapAdvice(mapped, busy)),
	}
	if u := t.o.Store(); u != nil {
		members = append(members, "store", object(2,
			"requests", u.Requests,
			"fetched_bytes", u.Bytes,
			"hits", u.Hits,
			"waits", u.Waits,
			"waited_ms", u.Waited.Milliseconds(),
			"unkept", u.Unkept,
			"memory_bytes", u.Memory))
	}
	return append(object(0, append(members, "splits", object(2, splits...))...), '\n')
}

// object is a JSON object of names and values, which begins on a line of so many spaces. A number is as wide as the widest can be,
// so that the size of status.json does not change between stat and read because one of them grew.
func object(indent int, members ...any) []byte {
	text := []byte("{")
	for i := 0; i < len(members); i += 2 {
		if i > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, "\n%*s%s: ", indent+2, "", jsontext.Quote(members[i].(string)))
		switch value := members[i+1].(type) {
		case []byte:
			text = append(text, value...)
		case string:
			text = append(text, jsontext.Quote(value)...)
		default:
			text = fmt.Appendf(text, "%20d", value)
		}
	}
	return fmt.Appendf(text, "\n%*s}", indent, "")
}

// countedSplits returns the members of status.json for splits and for settings in use, and how many settings the kernel has forgotten
// whose cursor moved.
func (t *tree) countedSplits() (members []any, idle int) {
	byName := map[string][]byte{}
	t.sequences.all(func(number int, name, fault string) {
		entry := &t.shared.Sequences[number]
		reads, errors := entry.Reads.Load(), entry.Errors.Load()
		isSplit := number <= t.sequences.splits
		switch {
		case !isSplit && entry.Lookups.Load() == 0:
			idle++
		case isSplit || entry.Moved() || reads+errors > 0:
			byName[name] = object(4,
				"cursor", entry.Next(),
				"reads", reads,
				"bytes", entry.Bytes.Load(),
				"given_back", entry.GivenBack.Load(),
				"errors", errors,
				"last_error", fault)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		members = append(members, name, byName[name])
	}
	return members, idle
}

// RemapAdvice is the setting that is faster where many reads under access remap find another one mapping, or empty.
func RemapAdvice(mapped, busy int64) string {
	if busy > mapped/9 {
		return `memory.access = "pread"`
	}
	return ""
}

func residentBytes() int64 {
	statm, _ := os.ReadFile("/proc/self/statm")
	var size, pages int64
	fmt.Sscan(string(statm), &size, &pages)
	return pages * int64(os.Getpagesize())
}
