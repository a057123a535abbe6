package stores

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// writers set up commands that write to one cache directory: a corpus in a store, and the arguments
// for reading it through a directory with room for all its blocks.
type writers struct {
	*e2e.Bucket
	data []byte   // content of the corpus
	args []string // arguments of batchfs
}

// newWriters stores a corpus of random blocks. inMemory is the number of blocks that a process may
// hold in memory.
func newWriters(t *testing.T, cacheDir string, blocks, inMemory int) writers {
	t.Helper()
	w := writers{Bucket: e2e.NewBucket(t), data: e2e.RandomBytes(blocks * e2e.StoreBlock)}
	w.Put(t, "train.bin", w.data)
	w.args = []string{"-c", w.Config(t, "s3://bucket/train.bin", `order = "shuffle"`),
		"--set", "store.cache_dir=" + cacheDir, "--set", "store.cache_bytes=1000000000", "--set", fmt.Sprintf("memory.ahead_bytes=%d", 2*inMemory*e2e.StoreBlock)}
	return w
}

// program returns a command that runs batchfs as the given client of the store, see e2e.Get.
func (w writers) program(client string) *exec.Cmd {
	return exec.Command("env", "AWS_SESSION_TOKEN="+client, e2e.Batchfs)
}

func (w writers) fill(t *testing.T, client string) {
	t.Helper()
	_, said, err := e2e.Try(t, append(append(w.program(client).Args, "cache", "fill"), w.args...)...)
	if err != nil {
		t.Errorf("%s: %v\n%s", client, err, said)
	}
}

// holdUntil makes the store hold all requests until n clients wait for a reply.
func (w writers) holdUntil(n int) {
	var mu sync.Mutex // guards clients
	clients, all := map[string]bool{}, make(chan struct{})
	release := sync.OnceFunc(func() { close(all) })
	w.Fails(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		clients[e2e.ClientOf(r)] = true
		if len(clients) == n {
			release()
		}
		mu.Unlock()
		<-all
		return false
	})
}

// keepsAll checks that the mount has written every block that it fetched to the cache.
func keepsAll(t *testing.T, m *e2e.Mounted) {
	t.Helper()
	metrics := e2e.Run(t, "cat", m.Path("metrics"))
	for _, reason := range []string{"unkept", "failed", "slow"} {
		e2e.Contains(t, "metrics", metrics, fmt.Sprintf("batchfs_cache_%s_blocks_total 0\n", reason))
	}
}

// Two fills and two mounts that share a cold cache all succeed. Two of them may fetch the same
// block, but none fetches a block twice, and none mistakes a block that another has written for a
// full cache.
func TestFourWriters(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	w := newWriters(t, filepath.Join(t.TempDir(), "blocks"), 60, 8)
	var mounts [2]*e2e.Mounted
	for i := range mounts {
		dir := t.TempDir()
		cmd := w.program(fmt.Sprint("mount", i))
		cmd.Args = append(append(append(cmd.Args, "mount"), w.args...), dir)
		mounts[i] = e2e.StartMount(t, dir, cmd)
	}
	for _, m := range mounts {
		m.AwaitReady(t)
	}
	w.holdUntil(4)
	var all sync.WaitGroup
	for i, m := range mounts {
		all.Go(func() { w.fill(t, fmt.Sprint("fill", i)) })
		all.Go(func() {
			out, said, err := e2e.Try(t, "sha256sum", m.Path("train/tokens.bin"), m.Path("train/batches.bin"))
			if want := fmt.Sprintf("%x ", sha256.Sum256(w.data)); err != nil || len(out) < len(want) || out[:len(want)] != want {
				t.Errorf("a mount reads %s%s (%v), want tokens with sum %s", out, said, err, want)
			}
		})
	}
	testwait.End(t, "the four writers", all.Wait)
	for _, m := range mounts {
		keepsAll(t, m)
	}
	bytes, again := w.Gets()
	if len(again) > 0 {
		t.Errorf("fetched again by the same process: %v", again)
	}
	t.Logf("bytes fetched: %v", bytes)
}

// If each write to the cache disk takes 20 ms, `cache fill` is slow, but does not report a full
// cache.
func TestSlowCacheDisk(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	disk := e2e.NewSlowFS(t, t.TempDir())
	const blocks = 200
	// Writing all blocks in memory takes longer than a block may wait to be written.
	w := newWriters(t, filepath.Join(disk.Dir, "blocks"), blocks, 100)
	disk.Delay(t, "write", 20*time.Millisecond)
	w.fill(t, "fill")
	status := e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "status"}, w.args...)...)
	e2e.Contains(t, "cache status", status, fmt.Sprintf("/bucket/train.bin: %d blocks", blocks))
	if writes := disk.Count(t, "write"); writes < blocks {
		t.Errorf("the slow disk saw %d writes of %d blocks", writes, blocks)
	}
}

// The next command that uses a cache directory removes the blocks that a killed process was
// writing.
func TestKilledWriter(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	source := t.TempDir()
	disk := e2e.NewSlowFS(t, source)
	w := newWriters(t, filepath.Join(disk.Dir, "blocks"), 20, 8)
	unfinished := func() []string { return e2e.Must(filepath.Glob(filepath.Join(source, "blocks", "new-*")))(t) }
	disk.Delay(t, "write", time.Second)
	for len(unfinished()) == 0 { // again if the kill came between two blocks
		cmd := exec.Command(e2e.PlainBatchfs, append([]string{"cache", "fill"}, w.args...)...)
		ended := e2e.Begin(t, cmd)
		e2e.Await(t, "a block that is being written", func() bool { return len(unfinished()) > 0 })
		e2e.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
		testwait.For(t, "the end of the killed process", ended)
	}
	disk.Delay(t, "write", 0)
	left := unfinished()[0]
	written := e2e.Content(t, left)
	for _, use := range []struct {
		name string
		do   func()
	}{
		{"fill", func() { w.fill(t, "") }},
		{"status", func() { e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "status"}, w.args...)...) }},
		{"prune", func() { e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "prune"}, w.args...)...) }},
		{"mount", func() { e2e.Run(t, "cat", e2e.Mount(t, w.args...).Path("train/batch/0")) }},
	} {
		e2e.NoError(t, os.WriteFile(left, written, 0o600))
		use.do()
		e2e.Equal(t, "unfinished blocks after "+use.name, len(unfinished()), 0)
	}
}
