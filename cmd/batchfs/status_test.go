package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"batchfs/fs"
	"batchfs/fs/state"
)

// status.json is valid JSON even if an error names a path that is not UTF-8.
func TestStatus(t *testing.T) {
	file, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(shared.Close)
	shared.Maps.Mapped.Store(8)
	shared.Maps.Busy.Store(1)
	r := statusReport{tableBytes: func() int64 { return 0 }, blockBytes: func() int64 { return 7 }}
	text := r.json(fs.LiveStatus{
		Shared:    shared,
		BadNames:  []fs.BadName{{Path: "train/nxt", Why: "no such file"}},
		Sequences: map[string]fs.LiveSequence{"train": {SequenceState: &shared.Sequences[1], LastError: "/data/\xff.bin\x1b"}, "val": {SequenceState: &shared.Sequences[2]}},
	})
	var status struct {
		Sequences map[string]map[string]any
		Remap     struct {
			Mapped int
			Advice string
		}
	}
	if err := json.Unmarshal(text, &status); err != nil || len(status.Sequences) != 2 || status.Remap.Mapped != 8 || status.Remap.Advice != `memory.access = "pread"` {
		t.Errorf("%v: %+v", err, status)
	}
	if !bytes.Contains(text, []byte(`"last_error": "/data/\udcff.bin\u001b"`)) {
		t.Errorf("status.json lacks the path:\n%s", text)
	}
}
