package fs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// readme is the file README of a mount.
func readme(mountpoint string, sequences []*Sequence) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `This is batchfs: training batches as files, read-only.

Every batch has a number, and batch k of a split never changes. The files of each split:

  next          a fresh batch, one per open. Raw little-endian numbers, in the shape given below.
                The number is taken at the first read. Keep the file open and read it from offset 0
                again, after its end, for the next one.
  next.npy, next.safetensors
                the same, as such a file; all three take numbers from one cursor
  cursor        the number that next takes next
  batch/<k>     batch number k, and batch/<k>.npy, <k>.safetensors: any k from 0 on; not listed by ls
  batch/<k>.json
                where each of its rows comes from
  batches.bin   batches 0 to steps-1 back to back, to be read in order or mapped
  batches.npy   the same as one array
  info.json     all that decides what the batches hold

A directory KEY=VALUE,... of a split, not listed by ls, is the split under other settings, with a
cursor of its own: next in rank=3,world=8 is for the fourth of eight ranks.

`)
	for _, s := range sequences {
		dims := dims(s.Shape)
		fmt.Fprintf(&b, "%s/%s: batches of shape (%s), %s, %d bytes\n", mountpoint, s.Name, dims, s.DType, s.BatchBytes)
		arrays := "x, y"
		if len(s.Shape) == 2 {
			arrays = "tokens"
		}
		fmt.Fprintf(&b, "  %s = numpy.fromfile(%q, numpy.%s).reshape(%s)\n\n", arrays, mountpoint+"/"+s.Name+"/next", s.DType, dims)
	}
	b.WriteString("status.json has counters and the last error of each split.\n")
	return []byte(b.String())
}

// status is the file status.json.
func (t *tree) status() []byte {
	type split struct {
		Cursor    uint64 `json:"cursor"`
		Reads     uint64 `json:"reads"`
		Bytes     uint64 `json:"bytes"`
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
	}{t.version, os.Getpid(), t.table.workers.Load(), int64(time.Since(t.began).Seconds()), residentBytes(), map[string]split{}}
	t.sequences.all(func(number int, s *Sequence, fault string) {
		state := &t.table.states[number]
		now := split{state.cursor.Load(), state.reads.Load(), state.bytes.Load(), state.errors.Load(), fault}
		if number <= t.sequences.splits || now.Cursor != s.Start || now.Reads+now.Errors > 0 {
			status.Splits[s.Name] = now
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
