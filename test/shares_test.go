package test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Two mounts, as two hosts with a cache each, read an epoch of a corpus in a store, and a second one. Each has each window of its share once
// an epoch, whole, and they have none in common; each byte is fetched by one of them, once, and nothing in the second epoch.
func TestHostsFetchTheirShares(t *testing.T) {
	long(t)
	const hosts, width, block = 2, 4, 12 // bytes of a token, and rows of a batch
	files, perFile, fetchBlock, shuffleBlock, blockSize := 3, 4<<20, storeBlock, 2*storeBlock, 100
	if inSoak() {
		files, perFile, fetchBlock, shuffleBlock, blockSize = 8, 256<<20, 4<<20, 64<<20, 1024
	}
	b := newBucket(t)
	raw := make([]byte, perFile)
	for i := range files {
		for at := 0; at < perFile; at += width { // a token is its position
			binary.LittleEndian.PutUint32(raw[at:], uint32((i*perFile+at)/width))
		}
		b.put(t, fmt.Sprintf("corpus/%d.bin", i), raw)
	}
	var mu sync.Mutex
	fetched := map[string]int{} // how often each block
	b.fails(func(_ http.ResponseWriter, r *http.Request) bool {
		var from, to int
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 && r.Method == http.MethodGet && to-from+1 > 64<<10 {
			mu.Lock()
			defer mu.Unlock()
			for ; from <= to; from += fetchBlock {
				fetched[fmt.Sprintf("%s from %d", r.URL.Path, from)]++
			}
		}
		return false
	})
	counts := func() (blocks, requests int) {
		mu.Lock()
		defer mu.Unlock()
		for what, n := range fetched {
			if blocks, requests = blocks+1, requests+n; n != 1 {
				t.Errorf("%s was fetched %d times", what, n)
			}
		}
		return blocks, requests
	}

	config := b.config(t, "s3://bucket/corpus/*.bin", fmt.Sprintf("token_dtype = \"uint32\"\nlayout = \"tokens\"\norder = \"shuffle\"\nworld = %d\n"+
		"shuffle_block = %d\nblock_size = %d\nbatch_size = %d", hosts, shuffleBlock, blockSize, block))
	read := make([][2]map[uint32]bool, hosts) // by epoch: the windows' first tokens
	var mounts []*mounted
	for host := range hosts {
		mounts = append(mounts, mount(t, "-c", config, "--set", fmt.Sprintf("splits.train.rank=%d", host), "--set", "store.cache_dir="+t.TempDir(), "--set",
			fmt.Sprintf("store.block_bytes=%d", fetchBlock), "--set", "mount.timeout=10m")) // or what is fetched ahead on a slow machine is given up
	}
	for epoch := range 2 {
		var readers sync.WaitGroup
		for host, m := range mounts {
			readers.Go(func() {
				var err error
				if read[host][epoch], err = readEpoch(t, m, epoch, block, blockSize); err != nil {
					t.Errorf("epoch %d of host %d: %v", epoch, host, err)
				}
			})
		}
		readers.Wait()
		if blocks, requests := counts(); blocks != files*perFile/fetchBlock || requests != blocks {
			t.Errorf("after epoch %d, %d blocks were fetched in %d requests, want each of %d once", epoch, blocks, requests, files*perFile/fetchBlock)
		}
	}
	windows := 0
	for host := range hosts {
		windows += len(read[host][0])
		for first := range read[host][0] {
			if !read[host][1][first] {
				t.Fatalf("host %d has the window at %d in its first epoch only", host, first)
			}
			if read[1-host][0][first] {
				t.Fatalf("both hosts have the window at %d", first)
			}
		}
	}
	if want := files*(perFile/width-1)/blockSize - files - hosts; windows < want {
		t.Errorf("%d windows were read, want %d at least", windows, want)
	}
}

// readEpoch reads an epoch of the tokens of a mount, and returns the first token of each row. The error is of a row that comes twice, or
// is no window.
func readEpoch(t *testing.T, m *mounted, epoch, batchSize, blockSize int) (map[uint32]bool, error) {
	var info struct {
		Rows int `json:"rows_per_epoch"`
	}
	if err := json.Unmarshal([]byte(run(t, "cat", m.path("train/info.json"))), &info); err != nil {
		return nil, err
	}
	steps := ((epoch+1)*info.Rows + batchSize - 1) / batchSize
	size := 4 * (blockSize + 1)
	cmd := command(t, "tail", "-c", fmt.Sprint("+", 1+epoch*info.Rows*size), m.path(fmt.Sprintf("train/steps=%d/batches.bin", steps)))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer cmd.Wait()
	defer out.Close()
	seen, row, in := map[uint32]bool{}, make([]byte, size), bufio.NewReaderSize(out, 1<<20)
	for range info.Rows {
		if _, err := io.ReadFull(in, row); err != nil {
			return nil, fmt.Errorf("%w %s", err, &said)
		}
		first := binary.LittleEndian.Uint32(row)
		if seen[first] {
			return nil, fmt.Errorf("the window at %d comes twice", first)
		}
		seen[first] = true
		for i := range blockSize + 1 {
			if got := binary.LittleEndian.Uint32(row[4*i:]); got != first+uint32(i) {
				return nil, fmt.Errorf("token %d of the window at %d is %d", i, first, got)
			}
		}
	}
	return seen, nil
}
