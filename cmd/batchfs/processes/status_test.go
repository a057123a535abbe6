package processes

import (
	"bytes"
	"encoding/json"
	"testing"

	"batchfs/fs"
	"batchfs/fs/state"
)

// status.json is valid JSON even if an error names a path that is not UTF-8. It lists the splits,
// and the open settings that were read or whose cursor has moved. It counts the settings that are
// not open.
func TestStatus(t *testing.T) {
	file, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(shared.Close)
	shared.Maps.Mapped.Store(8)
	shared.Maps.Busy.Store(1)
	for i, name := range []string{"train", "val", "train/seed=1", "train/seed=2", "train/seed=3", "train/seed=4"} {
		number := shared.NewNumber()
		shared.Add(number, name, 0, 0)
		shared.Sequences[number].Lookups.Store(uint64(min(i/2, 1)))
	}
	shared.SetLastError(1, "/data/\xff.bin\x1b")
	shared.Sequences[3].Reads.Store(1)
	shared.Sequences[4].Cursor.Store(1)
	shared.Sequences[5].Cursor.Store(1)
	shared.Sequences[5].Lookups.Store(0)
	r := statusReport{shared: shared, tableBytes: func() int64 { return 0 }, blockBytes: func() int64 { return 7 }}
	text := r.json(fs.LiveStatus{BadNames: []fs.BadName{{Path: "train/nxt", Why: "no such file"}}})
	var status struct {
		Sequences map[string]struct{ Number int }
		Idle      int `json:"idle_settings"`
		Remap     struct {
			Mapped int
			Advice string
		}
	}
	if err := json.Unmarshal(text, &status); err != nil || len(status.Sequences) != 4 || status.Sequences["train/seed=2"].Number != 4 || status.Idle != 1 || status.Remap.Mapped != 8 || status.Remap.Advice != `memory.access = "pread"` {
		t.Errorf("%v: %+v", err, status)
	}
	if !bytes.Contains(text, []byte(`"last_error": "/data/\udcff.bin\u001b"`)) {
		t.Errorf("status.json lacks the path:\n%s", text)
	}
}
