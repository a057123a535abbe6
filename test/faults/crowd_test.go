package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// startCrowd starts n threads that repeatedly read the first size bytes of a path each. end stops
// them and counts their reads.
func startCrowd(t *testing.T, n, size int, paths ...string) (end func() (reads, failed int)) {
	t.Helper()
	c := e2e.StartClient(t, exec.Command(e2e.CCrowd, append([]string{fmt.Sprint(n), fmt.Sprint(size)}, paths...)...))
	c.AwaitReady(t)
	return func() (reads, failed int) {
		e2e.Must(fmt.Sscan(c.End(t), &reads, &failed))(t)
		return reads, failed
	}
}

// Readers of large batches are served in turn, which bounds the memory of their replies. A reader
// of small batches is served meanwhile.
func TestCrowd(t *testing.T) {
	e2e.SkipIfShort(t)
	const budget = 64               // in MiB
	n := e2e.NormalOrSoak(100, 300) // more than the budget has room for
	dir := t.TempDir()
	file := e2e.WriteTokens(t, filepath.Join(dir, "train.bin"), 8<<20, 2)
	flags := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + file, "--set", fmt.Sprint("memory.budget=", budget<<20), "--set", "mount.timeout=1h"}
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
	want := e2e.Digests(t, "train", 0, e2e.NormalOrSoak(2, 8), flags...)
	serving, before := m.Worker(t), e2e.ProcNumber(m.Worker(t), "Threads")
	for name, paths := range map[string][]string{
		"large batches": {m.Path("train/batch_size=512/next")},
		"tiny rows":     {m.Path("train/batch_size=262144,block_size=1/batch/1"), m.Path("train/batch_size=262144,block_size=1/next")},
	} {
		end := startCrowd(t, n, 1<<20, paths...)
		most := 0
		for k := range want {
			e2e.Equal(t, fmt.Sprintf("%s: batch %d", name, k), e2e.Read(t, "read", m.Path(fmt.Sprint("train/batch/", k)))[0], want[k])
			most = max(most, e2e.ProcNumber(serving, "RssAnon")>>10)
		}
		reads, failed := end()
		t.Logf("%s: %d reads of 1 MiB, %d failed, %d MiB resident at most", name, reads, failed, most)
		if reads == 0 || e2e.InSoak() && most > budget+48 {
			t.Errorf("%s: %d reads, want some; the worker had %d MiB of memory, want at most %d and what every worker takes", name, reads, most, budget)
		}
	}
	e2e.Equal(t, "the worker", m.Worker(t), serving)
	e2e.Await(t, "the end of most threads", func() (any, bool) {
		threads := e2e.ProcNumber(serving, "Threads")
		return threads, threads <= before+64
	})
}

// Many requests that wait for files take few threads and do not delay another split. When the files
// respond, the requests succeed.
func TestCrowdOfAHangingSplit(t *testing.T) {
	e2e.SkipIfShort(t)
	d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 2_000_000))
	intact := e2e.Write(t, filepath.Join(t.TempDir(), "well.bin"), e2e.TokensOfVersion(2, changeTokens))
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.well.tokens="+intact,
		"--set", "mount.timeout=1h", "--set", "memory.access=pread")
	want := e2e.FileDigest(t, m, "train/batch/1")
	serving, before := m.Worker(t), e2e.ProcNumber(m.Worker(t), "Threads")
	// The kernel limits how many reads fill the page cache at a time, in all splits together.
	// batchfs raises that limit.
	paths := []string{m.Path("train/next")}
	for k := range 700 {
		paths = append(paths, m.Path(fmt.Sprint("train/batch/", 1000+k)))
	}
	end := startCrowd(t, len(paths), 49152, paths...)
	d.Set(t, e2e.Hang)
	e2e.Await(t, "600 waiting requests", func() (any, bool) {
		waiting := e2e.StatusOf(t, m).Waiting
		return waiting, waiting >= 600
	})
	for k := range 20 {
		e2e.FileDigest(t, m, fmt.Sprint("well/batch/", k))
		e2e.FileDigest(t, m, "well/batches.bin")
	}
	if n := e2e.ProcNumber(serving, "Threads"); n > before+100 {
		t.Errorf("the worker has %d threads, want at most 100 more than the %d it had", n, before)
	}
	d.Set(t, e2e.Healthy)
	_, failed := end()
	e2e.Equal(t, "reads that failed", failed, 0)
	e2e.Equal(t, "batch 1", e2e.FileDigest(t, m, "train/batch/1"), want)
	e2e.Equal(t, "the worker", m.Worker(t), serving)
}
