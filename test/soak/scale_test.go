package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// Looking up new settings takes no memory in the long run, and settings that are in use stay.
func TestManySettings(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	const first, warm, most = 1000, 20_000, 8 << 10 // most is in KiB, and allows for garbage
	n := e2e.Repeats(100_000)
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	h := e2e.StartHandles(t, m.Dir)
	h.Do("open train/seed=5/next")
	h.Do("read 0 0 100")
	for range 3 {
		e2e.Run(t, "cat", m.Path("train/seed=6/next"))
	}
	looks := func(first, n int) int { // returns lookups per second
		text := e2e.Read(t, "looks", m.Path("train"), fmt.Sprint(first), fmt.Sprint(first+n), "8")[0]
		return e2e.Must(strconv.Atoi(text))(t)
	}
	looks(first, warm)
	for lookups := warm; ; lookups += n {
		before := e2e.ProcNumber(m.Worker(t), "VmRSS")
		aSecond := looks(first+lookups, n)
		after := e2e.ProcNumber(m.Worker(t), "VmRSS")
		t.Logf("%d settings, %d a second: VmRSS %d KiB after %d, %d KiB after all", n, aSecond, before, lookups, after)
		if after-before <= most {
			break
		}
		if lookups >= warm+4*n { // a leak grows every time
			t.Fatalf("looking up %d settings raised the resident memory to %d KiB from %d, want at most %d more", n, after, before, most)
		}
	}

	e2e.Equal(t, "the cursors", m.Cursor(t, "train/seed=5")+" "+m.Cursor(t, "train/seed=6"), "1 3")
	want := e2e.Digests(t, "train", 0, 4, "-c", config, "--set", "splits.train.seed=5")
	e2e.Equal(t, "a read of the handle that stayed open", h.Do("read 0 0 256"), want[0])
	e2e.Equal(t, "the next batch of seed 5", e2e.FileDigest(t, m, "train/seed=5/next"), want[1])
	want = e2e.Digests(t, "train", 3, 1, "-c", config, "--set", "splits.train.seed=6")
	e2e.Equal(t, "the next batch of seed 6", e2e.FileDigest(t, m, "train/seed=6/next"), want[0])
}

// A mount is ready soon and its worker stays small, however many or large its files are.
func TestReady(t *testing.T) {
	const shards = 10_000
	dir := t.TempDir()
	for i := range shards {
		e2e.WriteTokens(t, filepath.Join(dir, "shards", fmt.Sprintf("%05d.bin", i)), 65, 2)
	}
	terabyte := e2e.Write(t, filepath.Join(dir, "terabyte.bin"), "")
	if err := os.Truncate(terabyte, 1<<40); err != nil {
		e2e.SkipOrFail(t, "this file system has no files of a terabyte: %v", err)
	}
	for _, test := range []struct {
		name, tokens string
		orders       []string
		within       time.Duration
	}{
		{"shards", filepath.Join(dir, "shards/*.bin"), []string{"random", "shuffle", "sequential"}, 2 * time.Second},
		{"terabyte", terabyte, []string{"random", "shuffle", "sequential", "torch", "torch-2.6"}, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", "/dev/null", "--set", "batch.block_size=64", "--set", "splits.train.tokens="+test.tokens)
			e2e.CheckDuration(t, "mounting", time.Since(began), test.within)
			e2e.Run(t, e2e.CReader, m.Path("train/next"), "0", "0", "10000")
			for _, order := range test.orders {
				began := time.Now()
				for _, file := range []string{"next", "batch/0", "batch/1099511627775"} {
					e2e.Contains(t, file, e2e.FileDigest(t, m, "train/order="+order+"/"+file), fmt.Sprint(2*12*64*2)+" ")
				}
				e2e.CheckDuration(t, "three batches in the order "+order, time.Since(began), test.within)
			}
			if kib := e2e.ProcNumber(m.Worker(t), "VmRSS"); e2e.InSoak() && kib > 64<<10 {
				t.Errorf("the worker has %d KiB resident, want at most %d", kib, 64<<10)
			}
		})
	}
}
