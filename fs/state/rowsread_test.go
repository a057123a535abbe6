package state

import (
	"fmt"
	"sync"
	"testing"

	"batchfs/internal/testwait"
)

// Whatever several processes record, the highest row is exact. A schedule too many is reported.
func TestFurthestRows(t *testing.T) {
	file, s := mapSections(t, func(_ int, bytes uint64) uint64 { return bytes })
	s.Add(s.NewNumber(), "val", 0, 0)
	s.Add(s.NewNumber(), "train", 0, 0)
	var all sync.WaitGroup
	for i := range 4 {
		process := mapAgain(t, file)
		all.Go(func() {
			for n := range 10_000 {
				k := uint64(n*4 + i)
				process.RecordFor("train", fmt.Sprint("block_size=", n%7)).Record(100*k+100, "train/rank=3", k)
			}
		})
	}
	testwait.End(t, "the goroutines", all.Wait)
	if list, complete := s.RowsRecords("val"); len(list) > 0 || !complete {
		t.Errorf("val: %d records, complete: %v", len(list), complete)
	}
	list, complete := s.RowsRecords("train")
	highest := map[string]uint64{}
	for _, f := range list {
		highest[f.Settings()] = max(highest[f.Settings()], f.Rows())
		if path, _, ago := f.Batch(); path != "train/rank=3" || ago < 0 || ago > 1e11 {
			t.Errorf("%s: path %q, read %v ago", f.Settings(), path, ago)
		}
	}
	for n := 10_000 - 7; n < 10_000; n++ {
		if settings := fmt.Sprint("block_size=", n%7); highest[settings] != uint64(n*4+3)*100+100 {
			t.Errorf("%s: %d rows, want %d", settings, highest[settings], uint64(n*4+3)*100+100)
		}
	}
	if !complete || s.RecordFor("train", "block_size=7") == nil {
		t.Errorf("%d records, complete: %v", len(list), complete)
	}
	if f := s.RecordFor("train", "block_size=8"); f != nil {
		t.Errorf("a record too many: %q", f.Settings())
	}
	if _, complete := s.RowsRecords("train"); complete {
		t.Error("the records are complete, though one is missing")
	}
}
