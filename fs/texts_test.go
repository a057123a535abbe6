package fs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

// What open handles of texts keep is bounded, and each shows its text from beginning to end nevertheless.
func TestTextsAreBounded(t *testing.T) {
	const size = 20 << 20
	names := []string{"a", "b", "c"}
	var sequences []Sequence
	for _, name := range names {
		s := counting(name, 1000)
		s.info = func() []byte { return bytes.Repeat([]byte(name), size) }
		sequences = append(sequences, s)
	}
	tr := plant(t, sequences...)
	var readers []*reader
	for _, name := range names {
		readers = append(readers, tr.reader(t, name+"/info.json", 0))
	}
	for _, off := range []int64{0, 1 << 20, 17 << 20, size - 10, size} {
		for n, r := range readers {
			want := bytes.Repeat([]byte(names[n]), int(min(100, size-off)))
			if text, status := r.read(off, 100); !status.Ok() || !bytes.Equal(text, want) {
				t.Errorf("%s/info.json at %d: %q, %v", names[n], off, text, status)
			}
			if tr.texts.bytes.Load() > maxTextBytes || len(tr.texts.open) > 1 {
				t.Fatalf("%d texts of %d bytes are kept", len(tr.texts.open), tr.texts.bytes.Load())
			}
		}
	}
	for _, r := range readers {
		r.close()
	}
	if tr.texts.bytes.Load() != 0 || len(tr.texts.open) != 0 {
		t.Errorf("when all are closed, %d bytes of %d texts are kept", tr.texts.bytes.Load(), len(tr.texts.open))
	}
}

// status.json is JSON with every sequence in use, and tells paths that are not UTF-8. It is made without holding up requests.
func TestStatus(t *testing.T) {
	const many = 3000
	tr := plant(t, counting("train", 1000))
	tr.shared.Remaps.Mapped.Store(3)
	tr.shared.Remaps.Busy.Store(2)
	dir := tr.find("train")
	for n := range many {
		number := tr.sequences.mustLookUp(t, dir, fmt.Sprint("seed=", n))
		tr.shared.Sequences[number].Reads.Add(1)
		tr.sequences.fault(number, lastUnique.Add(2), "/data/\xff.bin\x1b")
	}
	visited := 0
	tr.sequences.all(func(number int, _, _ string) {
		if !tr.sequences.mu.TryLock() {
			t.Fatal("the lock is held while status.json is made")
		}
		tr.sequences.mu.Unlock()
		visited++
	})
	var status struct {
		Splits map[string]map[string]any
		Remap  struct {
			Mapped, Busy int
			Advice       string
		}
	}
	if err := json.Unmarshal(tr.status(0), &status); err != nil || len(status.Splits) != many+1 || visited != many+1 {
		t.Errorf("%v: %d sequences, %d visited", err, len(status.Splits), visited)
	}
	if status.Remap.Mapped != 3 || status.Remap.Busy != 2 || status.Remap.Advice != "advice" {
		t.Errorf("remap: %v", status.Remap)
	}
	if !bytes.Contains(tr.status(0), []byte(`"last_error": "/data/\udcff.bin\u001b"`)) {
		t.Errorf("status.json lacks the path:\n%.2000s", string(tr.status(0)))
	}
}
