package fs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"batchfs/fs/state"
)

// texts are the files without batches: what they show, and what each open handle of a live one shows.
//
// Lock order: mu last.
type texts struct {
	readme         []byte
	programVersion string
	began          time.Time
	shared         *state.Shared
	sequences      *sequences

	mu     sync.Mutex
	open   map[uint64][]byte // what each open handle shows; guarded by mu
	opened uint64            // number of the last handle; guarded by mu
}

// keep keeps a text for the life of a handle. The handle tells how long the text is.
func (t *texts) keep(text []byte) (fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened++
	fh = t.opened<<textBits | uint64(min(len(text), 1<<textBits-1))
	t.open[fh] = text
	return fh
}

// textBits are those of a handle in which the length of its text stands, or the greatest that they have room for.
const textBits = 24

// resume keeps a text for a handle that another process opened.
func (t *texts) resume(fh uint64, text []byte) {
	t.mu.Lock()
	t.open[fh] = text
	t.mu.Unlock()
}

// of returns the text of a handle. ok is false if another process opened the handle.
func (t *texts) of(fh uint64) (text []byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, ok = t.open[fh]
	return text, ok
}

func (t *texts) release(fh uint64) {
	t.mu.Lock()
	delete(t.open, fh)
	t.mu.Unlock()
}

func readmeText(t *texts, _ *Sequence, _ inode) []byte { return t.readme }

func cursorText(t *texts, _ *Sequence, i inode) []byte {
	return fmt.Appendln(nil, t.shared.Sequences[i.sequence()].Next())
}

func infoText(t *texts, _ *Sequence, i inode) []byte {
	s, _ := t.sequences.now(i.sequence()) // an error is for those who read batches
	if s == nil {
		return []byte{}
	}
	return s.Info()
}

func provenanceText(_ *texts, s *Sequence, i inode) []byte { return s.Provenance(i.rest()) }

func hasProvenance(s *Sequence) bool { return s.Provenance != nil }

// statusText is status.json.
func statusText(t *texts, _ *Sequence, _ inode) []byte {
	type split struct {
		Cursor    uint64 `json:"cursor"`
		Reads     uint64 `json:"reads"`
		Bytes     uint64 `json:"bytes"`
		GivenBack uint64 `json:"given_back"`
		Errors    uint64 `json:"errors"`
		LastError string `json:"last_error"`
	}
	status := struct {
		Version string           `json:"version"`
		PID     int              `json:"pid"`
		Workers uint64           `json:"workers"`
		Uptime  int64            `json:"uptime_seconds"`
		RSS     int64            `json:"resident_bytes"`
		Splits  map[string]split `json:"splits"`
	}{t.programVersion, os.Getpid(), t.shared.Workers.Load(), int64(time.Since(t.began).Seconds()), residentBytes(), map[string]split{}}
	t.sequences.all(func(number int, name, fault string) {
		entry := &t.shared.Sequences[number]
		now := split{entry.Next(), entry.Reads.Load(), entry.Bytes.Load(), entry.GivenBack.Load(), entry.Errors.Load(), fault}
		if number <= t.sequences.splits || entry.Moved() || now.Reads+now.Errors > 0 {
			status.Splits[name] = now
		}
	})
	text, err := json.MarshalIndent(status, "", "  ")
	if err != nil {
		panic(err) // only of types that JSON does not have
	}
	return append(fixedWidth(text), '\n')
}

var numberLine = regexp.MustCompile(`(?m): (\d+)(,?)$`)

// fixedWidth makes every number of indented JSON as wide as the widest, so that the size of a file does not change
// between stat and read because one of them grew.
func fixedWidth(indented []byte) []byte {
	return numberLine.ReplaceAllFunc(indented, func(m []byte) []byte {
		digits := bytes.TrimSuffix(m[2:], []byte(","))
		return fmt.Appendf(nil, ": %20s%s", digits, m[2+len(digits):])
	})
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
