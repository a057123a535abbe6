package soak

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// steps is Python that reads batches in order, with pauses, and prints how many milliseconds the
// first one took.
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

// With a store that responds in 10 ms, a trainer with steps of 20 ms waits for less than a
// twentieth of the time.
func TestStoreLatency(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	b := e2e.NewBucket(t)
	const size = 20_000_000
	b.Put(t, "train.bin", e2e.RandomBytes(size))
	b.FailWith(func(http.ResponseWriter, *http.Request) bool {
		time.Sleep(10 * time.Millisecond)
		return false
	})
	m := e2e.Mount(t, "-c", b.Config(t, "s3://bucket/train.bin", "order = \"sequential\"\nblock_size = 2000"))
	fetched := b.BlockBytes.Load() // bytes that mounting fetched
	first := e2e.Must(strconv.Atoi(strings.TrimSpace(e2e.RunJob(t, e2e.Python, "-c", steps, m.Path("train")))))(t)
	var status struct {
		Store struct {
			Waited int `json:"waited_ms"`
		}
	}
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, "cat", m.Path("status.json"))), &status))
	e2e.CheckDuration(t, "the first batch", time.Duration(first)*time.Millisecond, time.Second)
	e2e.CheckDuration(t, "waiting for blocks", time.Duration(status.Store.Waited)*time.Millisecond, 200*20*time.Millisecond/20)
	if n := b.BlockBytes.Load() - fetched; n < 200*12*2000*2 || n > size {
		t.Errorf("%d bytes were fetched, want everything that was read, and each byte once", n)
	}
}
