package soak

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// A burden is what a process holds: descriptors, threads, and resident memory in KiB.
type burden struct{ Descriptors, Threads, ResidentKiB int }

// checkFlat calls do until a call adds no memory, files or threads to the worker. A leak grows with
// every call. The heap, and the threads for blocking calls, grow only sometimes.
func checkFlat(t *testing.T, m *e2e.Mounted, do func()) {
	t.Helper()
	do()
	for again := 1; ; again++ {
		worker := m.Worker(t)
		measure := func() burden {
			return burden{len(e2e.OpenFiles(t, worker)), e2e.ProcNumber(worker, "Threads"), e2e.ProcNumber(worker, "VmRSS")}
		}
		before := measure()
		began := time.Now()
		do()
		took := time.Since(began)
		var after burden
		e2e.Await(t, fmt.Sprintf("the worker to have %d descriptors again", before.Descriptors), func() (any, bool) {
			after = measure() // the kernel reports closed files a little later
			return e2e.OpenFiles(t, worker), after.Descriptors <= before.Descriptors
		})
		t.Logf("%+v, then %+v after %v", before, after, took)
		if after.Threads <= before.Threads+4 && after.ResidentKiB <= before.ResidentKiB+8<<10 {
			return
		}
		if again == 5 {
			t.Fatalf("each of %d calls added something to what the worker holds", again)
		}
	}
}

// Readers leave nothing behind in the worker.
func TestStaysFlat(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	for _, test := range []struct{ name, path, what, n string }{
		// This number is above the limit on handles.
		{"opens of next", "train/next", "opens", fmt.Sprint(e2e.Repeats(100_000))},
		{"opens of a batch", "train/batch/7.json", "opens", fmt.Sprint(e2e.Repeats(20_000))},
		{"lookups of splits", "", "looks", fmt.Sprint(e2e.Repeats(10_000))},
		{"lookups of batches", "train/batch", "looks", fmt.Sprint(e2e.Repeats(10_000))},
		{"lookups in settings", "train/seed=3", "looks", fmt.Sprint(e2e.Repeats(10_000))},
	} {
		t.Run(test.name, func(t *testing.T) {
			checkFlat(t, m, func() { e2e.RunJob(t, e2e.CReader, m.Path(test.path), test.what, test.n) })
		})
	}
	for _, command := range []string{"find . -ls", "du -a .", "tar cf - . | cat"} {
		t.Run(command, func(t *testing.T) {
			checkFlat(t, m, func() {
				e2e.RunJob(t, "sh", "-c", fmt.Sprintf("cd %s && for i in $(seq %d); do %s >/dev/null || exit 1; done", m.Dir, e2e.Repeats(20), command))
			})
		})
	}
}

// Readers that are killed at any moment leave nothing behind.
func TestKilledReaders(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config, "--set", "batch.batch_size=64", "--set", "batch.block_size=8192")
	chance := rand.New(rand.NewPCG(7, 8))
	files := []string{"train/next", "train/next.npy", "train/batches.bin", "train/batch/3"}
	checkFlat(t, m, func() {
		for i := range e2e.Repeats(100) {
			reader := exec.Command(e2e.CReader, m.Path(files[i%len(files)]), []string{"0", "4096"}[i/4%2], "0", "1000000")
			e2e.NoError(t, reader.Start())
			time.Sleep(time.Duration(chance.IntN(int(20 * time.Millisecond))))
			reader.Process.Kill()
			testwait.End(t, "the end of a killed reader", func() { reader.Wait() })
		}
	})
	// unmount succeeds only if no file is open in the mount.
	e2e.Run(t, e2e.Batchfs, "unmount", m.Dir)
}

// No read fails because of a signal. Go programs send signals to themselves.
func TestReaderUnderSignals(t *testing.T) {
	t.Parallel()
	n := e2e.Repeats(100)
	config, _ := e2e.SmallConfig(t, 1)
	flags := []string{"-c", config, "--set", "batch.batch_size=32", "--set", "batch.block_size=8192"}
	m := e2e.Mount(t, flags...)
	e2e.SameSet(t, e2e.Read(t, "under_signals", m.Path("train/next"), fmt.Sprint(n)), e2e.Digests(t, "train", 0, n, flags...))
}
