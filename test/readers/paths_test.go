package readers

import (
	"fmt"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A settings directory has the same files as a split. Its batches are those of a split with the
// same settings.
func TestSettingsInPaths(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
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
			if _, used := e2e.StatusOf(t, m).Sequences[dir]; used {
				t.Error("status.json lists a settings directory that was only looked up")
			}
			for _, want := range e2e.Digests(t, split, start, 3, flags...) {
				e2e.Equal(t, "next", e2e.FileDigest(t, m, dir+"/next"), want)
			}
			e2e.Equal(t, "the cursor", m.Cursor(t, dir), fmt.Sprint(start+3))
			e2e.Equal(t, "batch/5", e2e.FileDigest(t, m, dir+"/batch/5"), e2e.Digests(t, split, 5, 1, flags...)[0])
			e2e.Equal(t, "ls", e2e.Run(t, "ls", m.Path(dir)), e2e.Run(t, "ls", m.Path(split)))
		})
	}
	e2e.Equal(t, "the files that find lists", e2e.Run(t, "sh", "-c", "cd "+m.Dir+" && find . | sort"), list)
	e2e.Equal(t, "the cursor of train", m.Cursor(t, "train"), "0")
}

// A path that cannot exist fails when it is looked up, and the log says why.
func TestRejectedPaths(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	var logged []string
	const invalid, none = "Invalid argument", "No such file or directory"
	for _, test := range []struct{ path, errno, log string }{
		{"train/seed=seven", invalid, "seed=seven: seed: must be a whole number from 0 to 9223372036854775807 (got \\\"seven\\\")"},
		{"train/block_size=60000", invalid, "60000 tokens, need at least block_size+1 = 60001"},
		{"train/colour=red", none, `unknown setting \"colour\"; must be one of batch_size, block_size`},
		{"train/seed", none, ""},
		{"train/Next", none, ""},
		{"train/batch/seed=1", none, ""},
		{"seed=1", none, ""},
		{"train/seed=" + strings.Repeat("1", 250), invalid, "seed: must be"},
		{"train/seed=" + strings.Repeat("1", 251), "File name too long", ""},
	} {
		for _, path := range []string{test.path, test.path + "/next"} {
			e2e.CheckFails(t, test.errno, "stat", m.Path(path))
		}
		logged = append(logged, test.log)
	}
	e2e.Equal(t, "the sequences in status.json", len(e2e.StatusOf(t, m).Sequences), 2)
	m.Stop(t) // completes the log
	for _, text := range logged {
		e2e.Contains(t, "the log", m.Out.String(), text)
	}
}

// If processes look up the same new settings at the same time, each gets a different number.
func TestRaceToSettings(t *testing.T) {
	t.Parallel()
	const processes = 3
	n := 100
	if testing.Short() {
		n = 20
	}
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	got := e2e.Read(t, "first_comers", m.Path("train/seed={},rank=0/next"), fmt.Sprint(processes), fmt.Sprint(n))
	for seed := range n {
		want := e2e.Digests(t, "train", 0, processes, "-c", config, "--set", fmt.Sprintf("splits.train.seed=%d", seed))
		e2e.SameSet(t, got[seed*processes:][:processes], want)
	}
}
