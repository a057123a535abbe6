package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// A mount is ready soon and its worker stays small, however many or large its files are.
func TestReady(t *testing.T) {
	t.Parallel()
	shards, reads := e2e.NormalOrSoak(1000, 10_000), e2e.NormalOrSoak("1000", "10000")
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
			e2e.RunJob(t, e2e.CReader, m.Path("train/next"), "0", "0", reads)
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
