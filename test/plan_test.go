package test

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"testing"
)

// What plan says of a host's requests, bytes and blocks is what a mount then counts: for every order, in the first epoch and in a later
// one. With a block cache for half of it, blocks that were fetched ahead make room for others, so that some are fetched twice.
func TestPlanIsMeasured(t *testing.T) {
	long(t)
	b := newBucket(t)
	b.put(t, "train_0.bin", randomBytes(100*storeBlock))
	b.put(t, "train_1.bin", randomBytes(92*storeBlock))
	for _, test := range []struct {
		order, path string
		hosts, gpus int
		share       float64 // of what a host needs, that its block cache has room for
		ahead       int     // MiB
	}{
		{"random", "", 2, 2, 1, 4},
		{"shuffle", "", 2, 2, 1, 4},
		{"shuffle,shuffle_block=256KiB", ",local_world=2", 2, 2, 1, 4},
		{"sequential", "", 2, 2, 1, 4},
		{"shuffle", "", 4, 1, 0.5, 4},
		{"sequential", "", 2, 2, 0.5, 4},
		{"sequential", "", 2, 2, 0.5, 1}, // hardly more than the rows of a step need
	} {
		t.Run(fmt.Sprintf("%s/%g", test.order, test.share), func(t *testing.T) {
			config := b.config(t, "s3://bucket/train_*.bin", "block_size = 4000\nbatch_size = 4")
			args := []string{"-c", config, "--set", "store.cache_dir=" + t.TempDir(), "--set", fmt.Sprintf("memory.ahead_bytes=%d", test.ahead<<20)}
			planned := func(args ...string) (n struct {
				Epoch    int     `json:"epoch_steps"`
				Requests float64 `json:"host_requests"`
				Bytes    float64 `json:"host_fetched_bytes"`
				Reads    float64 `json:"host_block_reads"`
				Share    float64 `json:"share_bytes"`
			}) {
				t.Helper()
				out := run(t, append([]string{plainBatchfs, "plan", "train/order=" + test.order, "--json", "--step", "1s",
					"--hosts", strconv.Itoa(test.hosts), "--gpus", strconv.Itoa(test.gpus)}, args...)...)
				noError(t, json.Unmarshal([]byte(out), &n))
				return n
			}
			args = append(args, "--set", fmt.Sprintf("store.cache_bytes=%.0f", math.Ceil(test.share*planned(append(args, "--epochs", "2")...).Share)))
			epoch := planned(args...).Epoch
			m := mount(t, args...)
			type counted struct {
				Requests, Hits, Waits float64
				Bytes                 float64 `json:"fetched_bytes"`
			}
			count := func() counted {
				var status struct{ Store counted }
				noError(t, json.Unmarshal([]byte(run(t, "cat", m.path("status.json"))), &status))
				return status.Store
			}
			path := fmt.Sprintf("train/order=%s,world=%d%s", test.order, test.hosts*test.gpus, test.path)
			for epochs := 1; epochs <= 2; epochs++ {
				files := []string{"cksum"}
				for k := (epochs - 1) * epoch; k < epochs*epoch; k++ {
					for rank := range test.gpus {
						files = append(files, m.path(fmt.Sprintf("%s,rank=%d/batch/%d", path, rank, k)))
					}
				}
				run(t, files...)
				want, got := planned(append(args, "--steps", strconv.Itoa(epochs*epoch))...), count()
				near := func(what string, got, want, most float64) {
					if test.share < 1 {
						most = 0.2 // which blocks are still in memory depends on when they come
					}
					if math.Abs(got-want) > most*want {
						t.Errorf("%d epochs: %.0f %s, planned were %.0f", epochs, got, what, want)
					} else {
						t.Logf("%d epochs: %.0f %s, planned were %.0f", epochs, got, what, want)
					}
				}
				near("requests", got.Requests, want.Requests, 0.06)
				near("blocks fetched", got.Bytes/storeBlock, want.Bytes/storeBlock, 0.06)
				near("reads of blocks", got.Hits+got.Waits, want.Reads, 0.2)
			}
		})
	}
}
