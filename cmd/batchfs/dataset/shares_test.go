package dataset

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// A share of a host is described as it is: the settings and the rows of an epoch in info.json, the place of each row, and which rank and
// batch has a token. Without shuffle_block nothing speaks of it, and a sequence keeps its name.
func TestSharesAreDescribed(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 100_000, "b.bin": 70_000})
	d := mustOpen(t, testfiles.Small+"order = 'shuffle'\n[splits.train]\ntokens = ['a.bin', 'b.bin']")[0]
	for _, text := range []string{d.label(), string(d.Info()), string(originsOf(d, 0)), d.Summary()} {
		if strings.Contains(text, "shuffle_block") || strings.Contains(text, "local_world") || strings.Contains(text, "blocks") {
			t.Errorf("without shuffle_block: %s", text)
		}
	}
	rows := int64(0)
	for rank := range 4 {
		host, err := d.With(fmt.Sprintf("shuffle_block=128KiB,local_world=2,world=4,rank=%d", rank))
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			Sequence string
			Block    string `json:"shuffle_block"`
			Local    int    `json:"local_world"`
			Rows     int64  `json:"rows_per_epoch"`
			Batches  int64  `json:"batches_per_epoch"`
			Steps    int64
		}
		if err := json.Unmarshal(host.Info(), &info); err != nil {
			t.Fatal(err)
		}
		if rows += info.Rows; info.Block != "128KiB" || info.Local != 2 || info.Steps != info.Batches || !strings.Contains(info.Sequence, "local_world=2") ||
			!strings.Contains(info.Sequence, "shuffle_block=128KiB") {
			t.Errorf("rank %d: %+v", rank, info)
		}
		if want := fmt.Sprintf("order shuffle in blocks of 128KiB, %d rows of host %d of 2, seed", info.Rows, rank/2); !strings.Contains(host.Summary(), want) {
			t.Errorf("rank %d is %q, want %q", rank, host.Summary(), want)
		}
		for _, k := range []uint64{0, 17, uint64(info.Batches), 1<<40 - 1} {
			for j := range host.Sequence.BatchSize {
				row, err := host.origin(k, j)
				if err != nil {
					t.Fatal(err)
				}
				pos := row.start
				if strings.HasSuffix(row.file, "b.bin") {
					pos += 100_000
				}
				found, err := d.With("shuffle_block=128KiB,local_world=2,world=4")
				if err != nil {
					t.Fatal(err)
				}
				at, err := found.Find(t.Context(), pos+1, row.epoch, func(int64, int64) {})
				if err != nil || len(at.Finds) != 1 || at.Finds[0].Batch != k || at.Finds[0].Rank != rank || at.Finds[0].J != j || at.Finds[0].Row != row.row {
					t.Errorf("row %d of batch %d of rank %d is found at %+v (%v)", j, k, rank, at.Finds, err)
				}
			}
		}
	}
	whole, err := d.With("shuffle_block=128KiB")
	if err != nil {
		t.Fatal(err)
	}
	if all := whole.Sequence.RowsPerEpoch(); rows < 2*(all-2) || rows > 2*all {
		t.Errorf("two ranks of two hosts have %d rows an epoch, want about twice %d", rows, all)
	}
	_, err = d.With("shuffle_block=1MiB,world=4,rank=1")
	want := "shuffle_block = 1048576 bytes, there is no row for host 0 of 4; set shuffle_block to fewer bytes, or world to fewer ranks"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("of hosts without rows: %v, want %s", err, want)
	}
}

// A run of two machines with two ranks each goes on with other machines in the middle of an epoch. While world / local_world and batch_size *
// local_world stay what they were, each window is still read once in the epoch, whichever machine reads it.
func TestOtherMachines(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50_000, "b.bin": 34_000})
	d := mustOpen(t, testfiles.Small+"order = 'shuffle'\nshuffle_block = '64KiB'\n[splits.train]\ntokens = ['a.bin', 'b.bin']")[0]
	type window struct {
		file  string
		start int64
	}
	// read counts the windows of the first epoch that ranks of a world read in batches from a number on, and returns their rows.
	read := func(counts map[window]int, settings string, world int, from, to uint64) (rows int64) {
		for rank := range world {
			q, err := d.With(fmt.Sprintf("%s,world=%d,rank=%d", settings, world, rank))
			if err != nil {
				t.Fatal(err)
			}
			if local := q.Sequence.LocalWorld; rank%local == 0 {
				rows += q.Sequence.RowsPerEpoch()
			}
			for k := from; k < to; k++ {
				for j := range q.Sequence.BatchSize {
					row, err := q.origin(k, j)
					if err != nil {
						t.Fatal(err)
					}
					if row.epoch == 0 {
						counts[window{row.file, row.start}]++
					}
				}
			}
		}
		return rows
	}
	first := map[window]int{}
	const half, end = 880, 2400 // the larger share has been read before the end
	rows := read(first, "batch_size=3,local_world=2", 4, 0, half)
	for _, test := range []struct {
		settings string
		world    int
		whole    bool
	}{
		{"batch_size=3,local_world=2", 4, true}, // one machine of four ranks, or four of one
		{"batch_size=6,local_world=1", 2, true}, // two ranks in all
		{"batch_size=1,local_world=6", 12, true},
		{"batch_size=3,local_world=1", 4, false}, // four shares
		{"batch_size=3,local_world=4", 4, false}, // one share
	} {
		counts := maps.Clone(first)
		read(counts, test.settings, test.world, half, end)
		again := 0
		for _, n := range counts {
			again += n - 1
		}
		missing := int(rows) - len(counts)
		t.Logf("%s,world=%d: of %d windows, %d are read again and %d not", test.settings, test.world, rows, again, missing)
		if whole := again == 0 && missing == 0; whole != test.whole {
			t.Errorf("each window once: %v, want %v", whole, test.whole)
		}
	}
}
