package readers

import (
	"fmt"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// Under the settings of a path there are the files of a split, and batches are what the same settings give elsewhere.
func TestSettingsInPaths(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	list := e2e.Run(t, "sh", "-c", "cd "+m.Dir+" && find . | sort")
	for _, dir := range []string{
		"train/order=shuffle", "train/rank=1,world=3", "train/start=7", "train/seed=9223372036854775807",
		"val/batch_size=2/dtype=uint32,seed=5/layout=tokens/order=torch/start=3,steps=2",
	} {
		t.Run(dir, func(t *testing.T) {
			split, settings, _ := strings.Cut(dir, "/")
			flags, start := []string{"-c", config}, 0
			for _, setting := range strings.FieldsFunc(settings, func(c rune) bool { return c == '/' || c == ',' }) {
				flags = append(flags, "--set", "splits."+split+"."+setting)
				fmt.Sscanf(setting, "start=%d", &start)
			}
			e2e.Equal(t, "the cursor at first", m.Cursor(t, dir), fmt.Sprint(start))
			if _, used := e2e.StatusOf(t, m).Splits[dir]; used {
				t.Error("status.json has a sequence that was looked at")
			}
			for _, want := range e2e.Lines(t, split, start, 3, flags...) {
				e2e.Equal(t, "next", e2e.Take(t, m, dir+"/next"), want)
			}
			e2e.Equal(t, "the cursor", m.Cursor(t, dir), fmt.Sprint(start+3))
			e2e.Equal(t, "batch/5", e2e.Take(t, m, dir+"/batch/5"), e2e.Lines(t, split, 5, 1, flags...)[0])
			e2e.Equal(t, "ls", e2e.Run(t, "ls", m.Path(dir)), e2e.Run(t, "ls", m.Path(split)))
		})
	}
	if got := e2e.Run(t, "sh", "-c", "cd "+m.Dir+" && find . | sort"); got != list {
		t.Errorf("the mount lists\n%s\nand did list\n%s", got, list)
	}
	e2e.Equal(t, "the cursor of train", m.Cursor(t, "train"), "0")
}

// What cannot be a path is refused when it is looked up, and the log says why.
func TestRefusedPaths(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	var logged []string
	const invalid, none = "Invalid argument", "No such file or directory"
	for _, test := range []struct{ path, errno, log string }{
		{"train/seed=seven", invalid, "seed=seven: seed: must be a whole number from 0 to 9223372036854775807 (got \\\"seven\\\")"},
		{"train/seed=-1", invalid, "train/seed=-1: seed: must be"},
		{"train/seed=1,seed=1", invalid, "train/seed=1,seed=1: seed is set twice"},
		{"train/order=shufle", invalid, "order: must be random, shuffle, sequential, torch or torch-2.6 (got \\\"shufle\\\")"},
		{"train/batch_size=4096,world=4097", invalid, "batch_size times world must be at most"},
		{"train/rank=8,world=8", invalid, "train/rank=8,world=8: rank: must be below world, which is 8"},
		{"train/block_size=60000", invalid, "60000 tokens, need at least block_size+1 = 60001"},
		{"train/colour=red", none, `unknown setting \"colour\"; must be one of batch_size, block_size`},
		{"train/tokens=other.bin", none, `unknown setting \"tokens\"`},
		{"train/=", none, `unknown setting \"\"`},
		{"train/seed", none, ""},
		{"train/Next", none, ""},
		{"train/batch/seed=1", none, ""},
		{"seed=1", none, ""},
		{"train/batch/-1", none, ""},
		{"train/batch/01", none, ""},
		{"train/batch/1099511627776", none, ""},
		{"train/batch/1.txt", none, ""},
		{"train/seed=" + strings.Repeat("1", 250), invalid, "seed: must be"},
		{"train/seed=" + strings.Repeat("1", 251), "File name too long", ""},
	} {
		for _, path := range []string{test.path, test.path + "/next"} {
			e2e.Fails(t, test.errno, "stat", m.Path(path))
		}
		logged = append(logged, test.log)
	}
	e2e.Equal(t, "the sequences in status.json", len(e2e.StatusOf(t, m).Splits), 2)
	m.Stop(t) // after which the log is here in full
	for _, text := range logged {
		e2e.Contains(t, "the log", m.Out.String(), text)
	}
}

// Processes that look up new settings at the same moment get a number each.
func TestRaceToSettings(t *testing.T) {
	const processes = 3
	n := 100
	if testing.Short() {
		n = 20
	}
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	got := e2e.Read(t, "first_comers", m.Path("train/seed={},rank=0/next"), fmt.Sprint(processes), fmt.Sprint(n))
	for seed := range n {
		want := e2e.Lines(t, "train", 0, processes, "-c", config, "--set", fmt.Sprintf("splits.train.seed=%d", seed))
		e2e.SameSet(t, got[seed*processes:][:processes], want)
	}
}
