package commands

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"batchfs/test/e2e"
)

// estimates holds the estimates that plan prints as JSON.
type estimates struct {
	Epoch           int     `json:"epoch_steps"`
	Requests        float64 `json:"host_requests"`
	Bytes           float64 `json:"host_fetched_bytes"`
	WorkingSetBytes float64 `json:"working_set_bytes"`
	Mount           float64 `json:"mount_requests"`
}

// requestCounts counts requests to a store. others are all requests except those for blocks.
type requestCounts struct{ others, blocks, bytes atomic.Int64 }

func (c *requestCounts) count(_ http.ResponseWriter, r *http.Request) bool {
	var from, to int64
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 && to-from+1 > 64<<10 {
		c.blocks.Add(1)
		c.bytes.Add(to - from + 1)
	} else {
		c.others.Add(1)
	}
	return false
}

func checkNear(t *testing.T, what string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.0f, planned were %.0f", what, got, want)
	if math.Abs(got-want) > 0.1*want {
		t.Errorf("%s: %.0f, want %.0f within 10%%", what, got, want)
	}
}

// plan estimates requests and bytes to within a tenth of what the store counts: for mounting, and
// for every order in the first epoch and in a later one. If the block cache has room for only half,
// prefetched blocks evict others, so some are fetched twice.
func TestPlanIsMeasured(t *testing.T) {
	e2e.SkipIfShort(t)
	b := e2e.NewBucket(t)
	b.Put(t, "train_0.bin", e2e.RandomBytes(100*e2e.StoreBlock))
	b.Put(t, "train_1.bin", e2e.RandomBytes(92*e2e.StoreBlock))
	var c requestCounts
	b.FailWith(c.count)
	sizes := e2e.JSON[estimates](t, e2e.PlainBatchfs, "plan", "--tokens", strconv.Itoa(192*e2e.StoreBlock/2), "--shard-tokens",
		strconv.Itoa(100*e2e.StoreBlock/2), "--step", "1s", "--json")
	for _, test := range []struct {
		batch       string // settings
		hosts, gpus int
		room        float64 // size of the block cache, relative to a host's share
		ahead       int     // memory for prefetching, in MiB
		fill        bool    // whether the cache is filled before the run
	}{
		{"order=random", 4, 1, 1, 4, false},
		{"order=shuffle shuffle_block=256KiB local_world=2", 2, 2, 1, 4, false},
		{"order=shuffle shuffle_block=256KiB local_world=2", 2, 2, 1.16, 4, true},
		{"order=sequential", 2, 2, 1, 4, false},
		{"order=shuffle", 2, 2, 0.5, 4, false},
		{"order=sequential", 2, 2, 0.5, 4, false},
		{"order=sequential", 2, 2, 0.5, 1, false}, // barely enough for one step
	} {
		t.Run(fmt.Sprintf("%s/%g", test.batch, test.room), func(t *testing.T) {
			args := []string{"-c", b.Config(t, "s3://bucket/train_*.bin", ""), "--set", "store.cache_dir=" + t.TempDir(),
				"--set", fmt.Sprintf("memory.ahead_bytes=%d", test.ahead<<20)}
			for _, setting := range append(strings.Fields(test.batch), "block_size=4000", "batch_size=4", fmt.Sprintf("world=%d", test.hosts*test.gpus)) {
				args = append(args, "--set", "batch."+setting)
			}
			planned := func(epochs int) estimates {
				t.Helper()
				return e2e.JSON[estimates](t, append([]string{e2e.PlainBatchfs, "plan", "--json", "--step", "1s", "--epochs", strconv.Itoa(epochs),
					"--hosts", strconv.Itoa(test.hosts), "--gpus", strconv.Itoa(test.gpus)}, args...)...)
			}
			args = append(args, "--set", fmt.Sprintf("store.cache_bytes=%.0f", math.Ceil(test.room*planned(2).WorkingSetBytes)))
			plans := []estimates{planned(1), planned(2)}
			c.blocks.Store(0)
			c.bytes.Store(0)
			if test.fill {
				e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "fill", "train/rank=0,world=4,local_world=2"}, args...)...)
				checkNear(t, "requests to fill the cache", float64(c.blocks.Load()), plans[0].Requests)
			}
			c.others.Store(0)
			m := e2e.Mount(t, args...)
			checkNear(t, "requests to mount", float64(c.others.Load()), plans[0].Mount)
			checkNear(t, "requests to mount, by the sizes alone", float64(c.others.Load()), sizes.Mount)
			for i, plan := range plans {
				files := []string{"cksum"}
				for k := i * plan.Epoch; k < (i+1)*plan.Epoch; k++ {
					for rank := range test.gpus {
						files = append(files, m.Path(fmt.Sprintf("train/rank=%d/batch/%d", rank, k)))
					}
				}
				e2e.Run(t, files...)
				checkNear(t, fmt.Sprintf("requests for blocks, epochs: %d", i+1), float64(c.blocks.Load()), plan.Requests)
				checkNear(t, fmt.Sprintf("bytes, epochs: %d", i+1), float64(c.bytes.Load()), plan.Bytes)
			}
		})
	}
}
