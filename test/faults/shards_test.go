package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// Shards are files of one row each. A batch is read from shardRows of them, in order.
const shardRows = 8

var shardSettings = []string{"-c", "/dev/null", "--set", "batch.order=sequential", "--set", "batch.block_size=64", "--set", fmt.Sprint("batch.batch_size=", shardRows)}

// slowShards makes n shards in a file system that can be slow, and returns the settings to mount them with.
func slowShards(t *testing.T, n int) (slow *e2e.SlowFS, dir string, settings []string) {
	t.Helper()
	dir = t.TempDir()
	for i := range n {
		e2e.Write(t, filepath.Join(dir, fmt.Sprintf("%06d.bin", i)), e2e.VersionOf(i%6, 65))
	}
	slow = e2e.NewSlowFS(t, dir)
	return slow, dir, slices.Concat(shardSettings, []string{"--set", "splits.train.tokens=" + slow.Dir + "/*.bin"})
}

// openNext opens next of a mount of shards, and returns a function that reads a batch and returns how long that took.
func openNext(t *testing.T, mountpoint string) (read func() time.Duration) {
	t.Helper()
	file := e2e.Must(os.Open(filepath.Join(mountpoint, "train/next")))(t)
	t.Cleanup(func() { file.Close() })
	buf := make([]byte, e2e.Must(file.Stat())(t).Size())
	return func() time.Duration {
		t.Helper()
		began := time.Now()
		e2e.Must(file.ReadAt(buf, 0))(t)
		return time.Since(began)
	}
}

// While mount opens many files, it shows on a terminal how many it has opened. Then all reads
// succeed, however long it takes to check so many files.
func TestManyShards(t *testing.T) {
	t.Parallel()
	n, reads, request, delay := 200, 20, "open", 300*time.Millisecond
	if e2e.InSoak() {
		n, reads, request, delay = 100_000, 2000, "getattr", 300*time.Microsecond
	}
	slow, _, settings := slowShards(t, n)
	slow.Delay(t, request, delay)
	mountpoint, began := t.TempDir(), time.Now()
	inTerminal := []string{e2e.Python, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"}
	mount := []string{e2e.Batchfs, "mount", "-d", "--log", filepath.Join(t.TempDir(), "log"), mountpoint}
	out := e2e.Run(t, slices.Concat(inTerminal, mount, settings)...)
	t.Cleanup(func() { e2e.Run(t, e2e.Batchfs, "unmount", mountpoint) })
	t.Logf("to open %d files took %v", n, time.Since(began))
	if !regexp.MustCompile(fmt.Sprintf(`opened [1-9]\d* of %d files`, n)).MatchString(out) {
		t.Errorf("mount said %q", out)
	}
	slow.Delay(t, "open", 0)
	read, slowest := openNext(t, mountpoint), time.Duration(0)
	for range reads {
		slowest = max(slowest, read())
	}
	t.Logf("the slowest of %d reads took %v", reads, slowest)
}
