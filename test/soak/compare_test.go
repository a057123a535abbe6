package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

const comparedBytes = 2 * 12 * 1024 * 2 // size of a batch, x and y

// A comparedFile is a file in a mount that is read one batch after the other.
type comparedFile struct {
	m      *e2e.Mounted
	file   *os.File
	offset int64 // offset of the next batch in batches.bin
	// compute is how long the reader keeps a processor busy before each read, like a trainer.
	compute time.Duration
}

// A batch takes at most 1.05 times the processor time that it takes with the program BATCHFS_REF.
// The mounts of both programs are read alternately. `make bench-compare` runs this test.
func TestCompare(t *testing.T) {
	ref := os.Getenv("BATCHFS_REF")
	if ref == "" {
		t.Skip("for make bench-compare")
	}
	tokens := e2e.Write(t, filepath.Join(t.TempDir(), "train.bin"), make([]byte, 256<<20))
	for _, access := range []string{"pread", "remap"} {
		var mounts []*e2e.Mounted
		for _, program := range []string{ref, e2e.PlainBatchfs} {
			mounts = append(mounts, e2e.MountProgram(t, exec.Command(program), "-c", "/dev/null", "--set", "splits.train.tokens="+tokens,
				"--set", "batch.token_dtype=uint16", "--set", "batch.steps=100000000", "--set", "memory.access="+access))
		}
		for _, test := range []struct {
			name    string
			compute time.Duration
		}{{"next", 0}, {"next", 3 * time.Millisecond}, {"batches.bin", 0}} {
			t.Run(fmt.Sprintf("%s %s after %v", access, test.name, test.compute), func(t *testing.T) {
				var both []*comparedFile
				for _, m := range mounts {
					file := e2e.Must(os.Open(m.Path("train/" + test.name)))(t)
					defer file.Close()
					both = append(both, &comparedFile{m: m, file: file, compute: test.compute})
				}
				compare(t, both)
			})
		}
	}
}

// compare fails the test if a batch took more than 1.05 times the time in at least 32 of 50 rounds.
// For a factor of exactly 1.05, that happens once in thirty runs.
func compare(t *testing.T, both []*comparedFile) {
	t.Helper()
	const rounds, most = 50, 1.05
	var ratios []float64
	for round := range rounds + 1 {
		var cost [2]float64
		for i := range both {
			i = (i + round) % 2 // they take turns in going first
			cost[i] = both[i].measureCost(t)
		}
		if round > 0 { // the first round warms up
			ratios = append(ratios, cost[1]/cost[0])
		}
	}
	slices.Sort(ratios)
	t.Logf("processor time of the workers for a batch, now over ref: median %.3f, 95%% interval %.3f to %.3f", ratios[rounds/2], ratios[17], ratios[32])
	if ratios[rounds-32] > most {
		t.Errorf("a batch takes more than %v times the processor time of the reference", most)
	}
}

// measureCost reads for 200 ms, and returns the processor time per batch, in nanoseconds.
func (c *comparedFile) measureCost(t *testing.T) float64 {
	t.Helper()
	buf, batches := make([]byte, comparedBytes), 0
	before := c.processorTime(t)
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); batches++ {
		for computed := time.Now(); time.Since(computed) < c.compute; {
		}
		e2e.Must(c.file.ReadAt(buf, c.offset))(t)
		if filepath.Base(c.file.Name()) != "next" { // next has every batch at offset 0
			c.offset += comparedBytes
		}
	}
	took := c.processorTime(t) - before
	// The page cache must not serve these batches again.
	unix.Fadvise(int(c.file.Fd()), 0, 0, unix.FADV_DONTNEED)
	return float64(took) / float64(batches)
}

// processorTime returns the processor time that the workers have used since they started.
func (c *comparedFile) processorTime(t *testing.T) (sum time.Duration) {
	t.Helper()
	for _, worker := range c.m.Workers(t) {
		threads := e2e.Must(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", worker)))(t)
		for _, thread := range threads {
			var ran time.Duration
			stat, _ := os.ReadFile(thread)
			fmt.Sscan(string(stat), &ran)
			sum += ran
		}
	}
	if sum == 0 {
		t.Fatal("the kernel does not report the processor time of threads in /proc/PID/schedstat")
	}
	return sum
}
