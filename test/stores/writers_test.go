package stores

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// A writers runs commands that read a corpus in a store and share a cache directory with room for
// all blocks.
type writers struct {
	*e2e.Bucket
	data []byte   // content of the corpus
	args []string // arguments of batchfs
}

// newWriters puts a corpus of random blocks into a store. A process may hold inMemory blocks in
// memory.
func newWriters(t *testing.T, cacheDir string, blocks, inMemory int) writers {
	t.Helper()
	w := writers{Bucket: e2e.NewBucket(t), data: e2e.RandomBytes(blocks * e2e.StoreBlock)}
	w.Put(t, "train.bin", w.data)
	w.args = []string{"-c", w.Config(t, "s3://bucket/train.bin", `order = "shuffle"`),
		"--set", "store.cache_dir=" + cacheDir, "--set", "store.cache_bytes=1000000000", "--set", fmt.Sprintf("memory.ahead_bytes=%d", 2*inMemory*e2e.StoreBlock)}
	return w
}

// program returns a command that runs batchfs as the given client of the store (see e2e.Get).
func (w writers) program(client string) *exec.Cmd {
	return exec.Command("env", "AWS_SESSION_TOKEN="+client, e2e.Batchfs)
}

// fill runs cache fill as the given client of the store.
func (w writers) fill(t *testing.T, client string) {
	t.Helper()
	_, stderr, err := e2e.Try(t, append(append(w.program(client).Args, "cache", "fill"), w.args...)...)
	if err != nil {
		t.Errorf("cache fill as client %s: %v\n%s", client, err, stderr)
	}
}

// holdUntil makes the store hold requests until n clients wait for a reply.
func (w writers) holdUntil(n int) {
	var mu sync.Mutex // guards clients
	clients, released := map[string]bool{}, make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	w.FailWith(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		clients[e2e.ClientOf(r)] = true
		if len(clients) == n {
			release()
		}
		mu.Unlock()
		<-released
		return false
	})
}

// Two fills and two mounts that share a cold cache succeed. None of them fetches a block twice, or
// treats the cache as full because another one wrote to it.
func TestFourWriters(t *testing.T) {
	e2e.SkipIfShort(t)
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
	var running sync.WaitGroup
	for i, m := range mounts {
		running.Go(func() { w.fill(t, fmt.Sprint("fill", i)) })
		running.Go(func() {
			out, stderr, err := e2e.Try(t, "sha256sum", m.Path("train/tokens.bin"), m.Path("train/batches.bin"))
			if want := fmt.Sprintf("%x ", sha256.Sum256(w.data)); err != nil || len(out) < len(want) || out[:len(want)] != want {
				t.Errorf("a mount reads %s%s (%v), want tokens with checksum %s", out, stderr, err, want)
			}
		})
	}
	testwait.End(t, "the four writers", running.Wait)
	for _, m := range mounts { // all blocks that a mount fetched are in the cache
		metrics := e2e.Run(t, "cat", m.Path("metrics"))
		for _, reason := range []string{"unkept", "failed", "slow"} {
			e2e.Contains(t, "metrics", metrics, fmt.Sprintf("batchfs_cache_%s_blocks_total 0\n", reason))
		}
	}
	bytes, again := w.Gets()
	if len(again) > 0 {
		t.Errorf("blocks fetched again by the same process: %v, want none", again)
	}
	t.Logf("bytes fetched: %v", bytes)
}

// `cache fill` succeeds on a slow cache disk, which takes 20 ms for each write, and does not report
// a full cache.
func TestSlowCacheDisk(t *testing.T) {
	e2e.SkipIfShort(t)
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
		t.Errorf("the slow disk had %d writes, want at least one for each of %d blocks", writes, blocks)
	}
}
