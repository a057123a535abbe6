package soak

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// kill -9 of workers, and of all, while the directory fills: no wrong byte, and it stays within its bound.
func TestStoreKilled(t *testing.T) {
	e2e.Long(t)
	b := e2e.NewBucket(t)
	const tokens = 3_000_000
	data := e2e.RandomBytes(2 * tokens)
	b.Put(t, "train.bin", data)
	cacheDir := t.TempDir()
	const limit = 20 * e2e.StoreBlock
	config := b.Config(t, "s3://bucket/train.bin", "order = \"sequential\"\nlayout = \"tokens\"\nbatch_size = 10")
	args := []string{"-c", config, "--set", "store.cache_dir=" + cacheDir, "--set", "store.cache_bytes=" + strconv.Itoa(limit)}
	rounds := 6
	if e2e.InSoak() {
		rounds = 50
	}
	wantOf := func(k int) string { // batch k: rows of 101 tokens that overlap in one
		var all []byte
		for j := range 10 {
			at := 2 * 100 * (10*k + j)
			all = append(all, data[at:at+202]...)
		}
		return fmt.Sprintf("%x", sha256.Sum256(all))
	}
	r := rand.New(rand.NewPCG(1, 1))
	for round := range rounds {
		m := e2e.Mount(t, args...)
		pid := e2e.StatusOf(t, m).PID
		killed, moment := make(chan struct{}), time.Duration(r.IntN(300))*time.Millisecond
		go func() {
			defer close(killed)
			time.Sleep(moment)
			syscall.Kill(pid, syscall.SIGKILL)
		}()
		for range 20 {
			k := r.IntN(tokens / 1000)
			got, _, err := e2e.Try(t, "sha256sum", m.Path(fmt.Sprintf("train/batch/%d", k)))
			if err == nil && !strings.HasPrefix(got, wantOf(k)) {
				t.Fatalf("round %d: batch %d has other bytes", round, k)
			}
		}
		<-killed
		if round%2 == 1 { // the supervisor too
			m.Cmd.Process.Kill()
			m.AwaitEnd(t)
			e2e.Try(t, e2e.PlainBatchfs, "unmount", "--force", m.Dir)
		}
		m.Stop(t)
		used := int64(0)
		files, _ := filepath.Glob(filepath.Join(cacheDir, "*", "[0-9]*"))
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && !strings.Contains(file, "/mounted/") {
				used += info.Size()
			}
		}
		if used > limit {
			t.Errorf("round %d: the directory has %d bytes, may have %d", round, used, limit)
		}
	}
}

// steps reads batches in order with a pause between, and prints the milliseconds that the first one took.
const steps = `
import sys, time
for k in range(200):
    begin = time.monotonic()
    with open(f"{sys.argv[1]}/batch/{k}", "rb") as f:
        f.read()
    if k == 0:
        print(int(1000 * (time.monotonic() - begin)))
    time.sleep(0.02)
`

// A store that is 10 ms away keeps a trainer with steps of 20 ms waiting for less than a twentieth of the time.
func TestStoreLatency(t *testing.T) {
	e2e.ForSoak(t)
	b := e2e.NewBucket(t)
	const size = 20_000_000
	b.Put(t, "train.bin", e2e.RandomBytes(size))
	b.Fails(func(http.ResponseWriter, *http.Request) bool {
		time.Sleep(10 * time.Millisecond)
		return false
	})
	m := e2e.Mount(t, "-c", b.Config(t, "s3://bucket/train.bin", "order = \"sequential\"\nblock_size = 2000"))
	fetched := b.Large.Load() // to try whether a batch can be read
	first, err := strconv.Atoi(strings.TrimSpace(e2e.Run(t, e2e.Python, "-c", steps, m.Path("train"))))
	e2e.NoError(t, err)
	var status struct {
		Store struct {
			Waited int `json:"waited_ms"`
		}
	}
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, "cat", m.Path("status.json"))), &status))
	e2e.InTime(t, "the first batch", time.Duration(first)*time.Millisecond, time.Second)
	e2e.InTime(t, "waiting for blocks", time.Duration(status.Store.Waited)*time.Millisecond, 200*20*time.Millisecond/20)
	if n := b.Large.Load() - fetched; n < 200*12*2000*2 || n > size {
		t.Errorf("%d bytes were fetched, want all that was read, and each once", n)
	}
}
