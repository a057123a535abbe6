package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// soak returns n, in a soak 10n, and under -short n/10.
func soak(n int) int {
	switch {
	case inSoak():
		return 10 * n
	case testing.Short():
		return n / 10
	}
	return n
}

// A burden is what a process holds.
type burden struct{ descriptors, threads, residentKiB int }

// burdenOf is that of the process that serves a mount.
func burdenOf(t *testing.T, m *mounted) burden {
	t.Helper()
	pid := m.worker(t)
	proc := fmt.Sprintf("/proc/%d/", pid)
	open, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := strconv.Atoi(regexp.MustCompile(`Threads:\s+(\d+)`).FindStringSubmatch(string(status))[1])
	if err != nil {
		t.Fatal(err)
	}
	return burden{len(open), threads, resident(pid)}
}

// staysFlat calls do once to warm up, and then until one call adds nothing to what the worker holds. A leak grows with every
// call. What Go adds by itself does not: threads for calls that block at the same moment, and heap between collections.
func staysFlat(t *testing.T, m *mounted, do func()) {
	t.Helper()
	do()
	for again := 1; ; again++ {
		before := burdenOf(t, m)
		began := time.Now()
		do()
		took := time.Since(began)
		var after burden
		await(t, fmt.Sprintf("%d descriptors, as before", before.descriptors), func() bool {
			after = burdenOf(t, m) // the kernel reports closed files a little later
			return after.descriptors <= before.descriptors
		})
		t.Logf("%+v, then %+v after %v", before, after, took)
		if after.threads <= before.threads+4 && after.residentKiB <= before.residentKiB+8<<10 {
			return
		}
		if again == 5 {
			t.Fatalf("%d calls, and each added something", again)
		}
	}
}

// Nothing that readers and lookers do stays with the process that serves them.
func TestStaysFlat(t *testing.T) {
	config, _ := small(t, 1)
	m := mountProgram(t, exec.Command(plainBatchfs), "-c", config)
	for _, test := range []struct{ name, path, what, n string }{
		{"opens of next", "train/next", "opens", fmt.Sprint(soak(100_000))}, // more than there are handles
		{"opens of a batch", "train/batch/7.json", "opens", fmt.Sprint(soak(20_000))},
		{"lookups of splits", "", "looks", fmt.Sprint(soak(10_000))},
		{"lookups of batches", "train/batch", "looks", fmt.Sprint(soak(10_000))},
		{"lookups in settings", "train/seed=3", "looks", fmt.Sprint(soak(10_000))},
	} {
		t.Run(test.name, func(t *testing.T) {
			staysFlat(t, m, func() { run(t, cReader, m.path(test.path), test.what, test.n) })
		})
	}
	for _, command := range []string{"find . -ls", "du -a .", "tar cf - . | cat"} {
		t.Run(command, func(t *testing.T) {
			staysFlat(t, m, func() {
				run(t, "sh", "-c", fmt.Sprintf("cd %s && for i in $(seq %d); do %s >/dev/null || exit 1; done", m.dir, soak(20), command))
			})
		})
	}
}

// Readers that are killed at any moment leave nothing behind.
func TestKilledReaders(t *testing.T) {
	config, _ := small(t, 1)
	m := mountProgram(t, exec.Command(plainBatchfs), "-c", config, "--set", "batch.batch_size=64", "--set", "batch.block_size=8192")
	chance := rand.New(rand.NewPCG(7, 8))
	files := []string{"train/next", "train/next.npy", "train/batches.bin", "train/batch/3"}
	staysFlat(t, m, func() {
		for i := range soak(100) {
			reader := exec.Command(cReader, m.path(files[i%len(files)]), []string{"0", "4096"}[i/4%2], "0", "1000000")
			if err := reader.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(chance.IntN(int(20 * time.Millisecond))))
			reader.Process.Kill()
			reader.Wait()
		}
	})
	// No file is open there any more.
	run(t, batchfs, "unmount", m.dir)
}

// Signals that Go sends itself, of which the kernel tells with INTERRUPT, are no reason to fail a read.
func TestGoReaderUnderSignals(t *testing.T) {
	const goroutines = 8
	n := soak(30)
	config, _ := small(t, 1)
	flags := []string{"-c", config, "--set", "batch.batch_size=32", "--set", "batch.block_size=8192"}
	m := mount(t, flags...)
	out, stderr, err := try(t, goSignals, m.path("train/next"), fmt.Sprint(goroutines), fmt.Sprint(n))
	if err != nil {
		t.Fatalf("%v %s", err, stderr)
	}
	t.Log(strings.TrimSpace(stderr))
	sameSet(t, strings.Split(strings.TrimSpace(out), "\n"), lines(t, "train", 0, goroutines*n, flags...))
}
