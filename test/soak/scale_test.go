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

// Looking up settings without end costs no memory, and what is in use among them stays what it is.
func TestManySettings(t *testing.T) {
	e2e.ForSoak(t)
	const first, warm, most = 1000, 20_000, 8 << 10 // KiB; the garbage collector takes some more or less
	n := e2e.Soak(100_000)
	config, _ := e2e.Small(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	h := e2e.StartHandles(t, m.Dir)
	h.Do("open train/seed=5/next")
	h.Do("read 0 0 100")
	for range 3 {
		e2e.Run(t, "cat", m.Path("train/seed=6/next"))
	}
	looks := func(first, n int) int { // a second
		text := e2e.Read(t, "looks", m.Path("train"), fmt.Sprint(first), fmt.Sprint(first+n), "8")[0]
		return e2e.Must(strconv.Atoi(text))(t)
	}
	looks(first, warm)
	for looked := warm; ; looked += n {
		before := e2e.InProc(m.Worker(t), "VmRSS")
		aSecond := looks(first+looked, n)
		after := e2e.InProc(m.Worker(t), "VmRSS")
		t.Logf("%d settings, %d a second: VmRSS %d KiB after %d, %d KiB after all", n, aSecond, before, looked, after)
		if after-before <= most {
			break
		}
		if looked >= warm+4*n { // a leak grows every time
			t.Fatalf("looking up %d settings made %d KiB resident, from %d", n, after, before)
		}
	}

	e2e.Equal(t, "the cursors are", m.Cursor(t, "train/seed=5")+" "+m.Cursor(t, "train/seed=6"), "1 3")
	want := e2e.Lines(t, "train", 0, 4, "-c", config, "--set", "splits.train.seed=5")
	e2e.Equal(t, "the handle that stayed", h.Do("read 0 0 256"), want[0])
	e2e.Equal(t, "seed 5 goes on", e2e.Take(t, m, "train/seed=5/next"), want[1])
	want = e2e.Lines(t, "train", 3, 1, "-c", config, "--set", "splits.train.seed=6")
	e2e.Equal(t, "seed 6 goes on", e2e.Take(t, m, "train/seed=6/next"), want[0])
}

// A mount is ready soon, however many or large its files, and batches from all over them leave the worker small.
func TestReady(t *testing.T) {
	const shards = 10_000
	dir := t.TempDir()
	for i := range shards {
		e2e.Tokens(t, filepath.Join(dir, "shards", fmt.Sprintf("%05d.bin", i)), 65, 2)
	}
	terabyte := e2e.Write(t, filepath.Join(dir, "terabyte.bin"), "")
	if err := os.Truncate(terabyte, 1<<40); err != nil {
		e2e.Lack(t, "no file of a terabyte here: %v", err)
	}
	for _, test := range []struct {
		name, tokens string
		orders       []string
		within       time.Duration
	}{
		{"shards", filepath.Join(dir, "shards/*.bin"), []string{"random", "shuffle", "sequential"}, 2 * time.Second},
		{"terabyte", terabyte, []string{"random", "shuffle", "sequential", "torch", "torch-2.6"}, time.Second},
	} {
		for _, order := range test.orders {
			t.Run(test.name+" "+order, func(t *testing.T) {
				began := time.Now()
				m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", "/dev/null", "--set", "batch.block_size=64",
					"--set", "batch.order="+order, "--set", "splits.train.tokens="+test.tokens)
				e2e.InTime(t, "to get ready", time.Since(began), test.within)
				if order == "random" {
					e2e.Run(t, e2e.CReader, m.Path("train/next"), "0", "0", "10000")
				}
				if kib := e2e.InProc(m.Worker(t), "VmRSS"); e2e.InSoak() && kib > 64<<10 {
					t.Errorf("%d KiB resident", kib)
				}
				for _, file := range []string{"next", "batch/0", "batch/1099511627775"} {
					e2e.Contains(t, file, e2e.Take(t, m, "train/"+file), fmt.Sprint(2*12*64*2)+" ")
				}
			})
		}
	}
}
