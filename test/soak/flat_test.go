package soak

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// A burden is the descriptors, threads and KiB of memory that a process holds.
type burden struct{ Descriptors, Threads, ResidentKiB int }

// staysFlat calls do once to warm up, and then until one call adds nothing to what the worker holds. A leak grows with every
// call. What Go adds by itself does not: threads for calls that block at the same moment, and heap between collections.
func staysFlat(t *testing.T, m *e2e.Mounted, do func()) {
	t.Helper()
	do()
	for again := 1; ; again++ {
		worker := m.Worker(t)
		held := func() burden {
			return burden{len(e2e.FDs(t, worker)), e2e.InProc(worker, "Threads"), e2e.InProc(worker, "VmRSS")}
		}
		before := held()
		began := time.Now()
		do()
		took := time.Since(began)
		var after burden
		e2e.Await(t, fmt.Sprintf("%d descriptors, as before", before.Descriptors), func() bool {
			after = held() // the kernel reports closed files a little later
			return after.Descriptors <= before.Descriptors
		})
		t.Logf("%+v, then %+v after %v", before, after, took)
		if after.Threads <= before.Threads+4 && after.ResidentKiB <= before.ResidentKiB+8<<10 {
			return
		}
		if again == 5 {
			t.Fatalf("%d calls, and each added something", again)
		}
	}
}

// Nothing that readers and lookers do stays with the process that serves them.
func TestStaysFlat(t *testing.T) {
	e2e.ForSoak(t)
	config, _ := e2e.Small(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	for _, test := range []struct{ name, path, what, n string }{
		{"opens of next", "train/next", "opens", fmt.Sprint(e2e.Soak(100_000))}, // more than there are handles
		{"opens of a batch", "train/batch/7.json", "opens", fmt.Sprint(e2e.Soak(20_000))},
		{"lookups of splits", "", "looks", fmt.Sprint(e2e.Soak(10_000))},
		{"lookups of batches", "train/batch", "looks", fmt.Sprint(e2e.Soak(10_000))},
		{"lookups in settings", "train/seed=3", "looks", fmt.Sprint(e2e.Soak(10_000))},
	} {
		t.Run(test.name, func(t *testing.T) {
			staysFlat(t, m, func() { e2e.Run(t, e2e.CReader, m.Path(test.path), test.what, test.n) })
		})
	}
	for _, command := range []string{"find . -ls", "du -a .", "tar cf - . | cat"} {
		t.Run(command, func(t *testing.T) {
			staysFlat(t, m, func() {
				e2e.Run(t, "sh", "-c", fmt.Sprintf("cd %s && for i in $(seq %d); do %s >/dev/null || exit 1; done", m.Dir, e2e.Soak(20), command))
			})
		})
	}
}

// Readers that are killed at any moment leave nothing behind.
func TestKilledReaders(t *testing.T) {
	e2e.ForSoak(t)
	config, _ := e2e.Small(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config, "--set", "batch.batch_size=64", "--set", "batch.block_size=8192")
	chance := rand.New(rand.NewPCG(7, 8))
	files := []string{"train/next", "train/next.npy", "train/batches.bin", "train/batch/3"}
	staysFlat(t, m, func() {
		for i := range e2e.Soak(100) {
			reader := exec.Command(e2e.CReader, m.Path(files[i%len(files)]), []string{"0", "4096"}[i/4%2], "0", "1000000")
			e2e.NoError(t, reader.Start())
			time.Sleep(time.Duration(chance.IntN(int(20 * time.Millisecond))))
			reader.Process.Kill()
			reader.Wait()
		}
	})
	// No file is open there any more.
	e2e.Run(t, e2e.Batchfs, "unmount", m.Dir)
}

// Signals, such as Go sends itself, which the kernel reports with INTERRUPT, are no reason to fail a read.
func TestReaderUnderSignals(t *testing.T) {
	n := e2e.Soak(100)
	config, _ := e2e.Small(t, 1)
	flags := []string{"-c", config, "--set", "batch.batch_size=32", "--set", "batch.block_size=8192"}
	m := e2e.Mount(t, flags...)
	e2e.SameSet(t, e2e.Read(t, "under_signals", m.Path("train/next"), fmt.Sprint(n)), e2e.Lines(t, "train", 0, n, flags...))
}
