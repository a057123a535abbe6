package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// info.json and the summary describe the share of a host if shuffle_block is set.
func TestSharesAreDescribed(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 100_000, "b.bin": 70_000})
	d := mustOpen(t, testfiles.Small+"order = 'shuffle'\n[splits.train]\ntokens = ['a.bin', 'b.bin']")[0]
	for _, text := range []string{d.sequencePath(), string(originsOf(d, 0)), d.Summary()} {
		if strings.Contains(text, "shuffle_block") || strings.Contains(text, "local_world") || strings.Contains(text, "blocks") {
			t.Errorf("without shuffle_block: %s", text)
		}
	}
	rows := int64(0)
	for rank := range 4 {
		host := mustWith(t, d, fmt.Sprintf("shuffle_block=128KiB,local_world=2,world=4,rank=%d", rank))
		var info struct {
			Sequence string
			Block    string `json:"shuffle_block"`
			Local    int    `json:"local_world"`
			Rows     int64  `json:"rows_per_epoch"`
			Batches  int64  `json:"batches_per_epoch"`
			Steps    int64
		}
		must(t, json.Unmarshal(host.Info(), &info))
		if rows += info.Rows; info.Block != "128KiB" || info.Local != 2 || info.Steps != info.Batches || !strings.Contains(info.Sequence, "local_world=2") ||
			!strings.Contains(info.Sequence, "shuffle_block=128KiB") {
			t.Errorf("rank %d: %+v", rank, info)
		}
		if want := fmt.Sprintf("order shuffle in blocks of 128KiB, %d rows of host %d of 2, seed", info.Rows, rank/2); !strings.Contains(host.Summary(), want) {
			t.Errorf("rank %d is %q, want %q", rank, host.Summary(), want)
		}
	}
	if all := mustWith(t, d, "shuffle_block=128KiB").Sequence.RowsPerEpoch(); rows < 2*(all-2) || rows > 2*all {
		t.Errorf("two ranks of two hosts have %d rows an epoch, want about twice %d", rows, all)
	}
	_, err := d.With("shuffle_block=1MiB,world=4,rank=1")
	want := "shuffle_block = 1048576 bytes, there is no row for host 0 of 4; reduce shuffle_block or world"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("of hosts without rows: %v, want %s", err, want)
	}
}

// A run on two machines with two ranks each continues on other machines in the middle of an epoch.
// As long as world / local_world and batch_size * local_world stay the same, each window is still
// read once per epoch, whichever machine reads it.
func TestOtherMachines(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50_000, "b.bin": 34_000})
	d := mustOpen(t, testfiles.Small+"order = 'shuffle'\nshuffle_block = '64KiB'\n[splits.train]\ntokens = ['a.bin', 'b.bin']")[0]
	type window struct {
		file  string
		start int64
	}
	// read counts the windows of the first epoch in batches [from, to) of all ranks, and returns
	// the number of their rows.
	read := func(counts map[window]int, settings string, world int, from, to uint64) (rows int64) {
		for rank := range world {
			q := mustWith(t, d, fmt.Sprintf("%s,world=%d,rank=%d", settings, world, rank))
			if local := q.Sequence.LocalWorld; rank%local == 0 {
				rows += q.Sequence.RowsPerEpoch()
			}
			for k := from; k < to; k++ {
				for j := range q.Sequence.BatchSize {
					row, err := q.origin(k, j)
					must(t, err)
					if row.epoch == 0 {
						counts[window{row.file, row.start}]++
					}
				}
			}
		}
		return rows
	}
	first := map[window]int{}
	const half, end = 880, 2400 // the larger host share is read completely before batch end
	rows := read(first, "batch_size=3,local_world=2", 4, 0, half)
	for _, test := range []struct {
		settings string
		world    int
		whole    bool
	}{
		{"batch_size=3,local_world=2", 4, true}, // four ranks on one machine, or on four
		{"batch_size=6,local_world=1", 2, true}, // two ranks in total
		{"batch_size=1,local_world=6", 12, true},
		{"batch_size=3,local_world=1", 4, false}, // four host shares
		{"batch_size=3,local_world=4", 4, false}, // one host share
	} {
		counts := maps.Clone(first)
		read(counts, test.settings, test.world, half, end)
		again := 0
		for _, n := range counts {
			again += n - 1
		}
		if missing := int(rows) - len(counts); (again == 0 && missing == 0) != test.whole {
			t.Errorf("%s,world=%d: of %d windows, %d are read again and %d not; each once: want %v", test.settings, test.world, rows, again, missing, test.whole)
		}
	}
}

// epoch_ends separates the rows of the first epoch from those of the second. The ranks that share
// an epoch read each of its rows once.
func TestEpochEnds(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50_003, "b.bin": 34_001})
	d := mustOpen(t, testfiles.Small+"[splits.train]\ntokens = ['a.bin', 'b.bin']")[0]
	for settings, together := range map[string]int{
		"order=sequential": 4, "order=shuffle": 4, "order=shuffle,batch_size=7": 4, "order=shuffle,shuffle_block=64KiB,local_world=2": 2,
	} {
		read := int64(0)
		for rank := range 4 {
			q := mustWith(t, d, fmt.Sprintf("%s,world=4,rank=%d", settings, rank)).Sequence
			var info struct {
				Rows int64 `json:"rows_per_epoch"`
				Ends struct {
					Batch uint64
					Rows  int
				} `json:"epoch_ends"`
			}
			must(t, json.Unmarshal(mustWith(t, d, fmt.Sprintf("%s,world=4,rank=%d", settings, rank)).Info(), &info))
			for j := range q.BatchSize {
				if first := q.Epoch(info.Ends.Batch, j) == 0; first != (j < info.Ends.Rows) || q.Epoch(info.Ends.Batch+1, j) != 1 {
					t.Errorf("%s, rank %d: row %d of batch %d, and epoch_ends is %+v", settings, rank, j, info.Ends.Batch, info.Ends)
				}
			}
			if read += int64(info.Ends.Batch)*int64(q.BatchSize) + int64(info.Ends.Rows); rank%together == together-1 {
				if read != info.Rows {
					t.Errorf("%s: up to rank %d, %d rows are read of %d", settings, rank, read, info.Rows)
				}
				read = 0
			}
		}
	}
	mixture := mustOpen(t, testfiles.Small+"[splits.val]\norder = 'sequential'\n[[splits.val.sources]]\nname = 'a'\ntokens = 'a.bin'\nweight = 2\n"+
		"[[splits.val.sources]]\nname = 'b'\ntokens = 'b.bin'\nweight = 1\nmax_epochs = 0.5\n")[0]
	alone := mustOpen(t, testfiles.Small+"[splits.a]\norder = 'sequential'\ntokens = 'a.bin'\n")[0]
	ends := regexp.MustCompile(`(?s)"epoch_ends": \{.*?\}`)
	if got, want := ends.Find(mustWith(t, mixture, "source=a").Info()), ends.Find(alone.Info()); want == nil || !bytes.Equal(got, want) {
		t.Errorf("a source of a mixture has %s, want %s, as a split of its own", got, want)
	}
	for what, d := range map[string]*Dataset{
		"rows drawn with replacement": mustWith(t, d, "order=random"), "a mixture": mixture, "half an epoch": mustWith(t, mixture, "source=b"),
	} {
		if got := ends.Find(d.Info()); got != nil {
			t.Errorf("%s: no epoch ends, but info.json has %s", what, got)
		}
	}
}
