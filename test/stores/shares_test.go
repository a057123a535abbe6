package stores

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"batchfs/test/e2e"
)

// Two mounts, as two hosts with a cache each, read an epoch of a corpus in a store, and a second one. Each has each window of its share once
// an epoch, whole, and they have none in common; each byte is fetched by one of them, once, and nothing in the second epoch.
func TestHostsFetchTheirShares(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	const hosts, width, block = 2, 4, 12 // bytes of a token, and rows of a batch
	const files, perFile, fetchBlock, shuffleBlock, blockSize = 3, 4 << 20, e2e.StoreBlock, 2 * e2e.StoreBlock, 100
	b := e2e.NewBucket(t)
	raw := make([]byte, perFile)
	for i := range files {
		for at := 0; at < perFile; at += width { // a token is its position
			binary.LittleEndian.PutUint32(raw[at:], uint32((i*perFile+at)/width))
		}
		b.Put(t, fmt.Sprintf("corpus/%d.bin", i), raw)
	}
	var mu sync.Mutex
	fetched := map[string]int{} // how often each block
	b.Fails(func(_ http.ResponseWriter, r *http.Request) bool {
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

	config := b.Config(t, "s3://bucket/corpus/*.bin", fmt.Sprintf("token_dtype = \"uint32\"\nlayout = \"tokens\"\norder = \"shuffle\"\nworld = %d\n"+
		"shuffle_block = %d\nblock_size = %d\nbatch_size = %d", hosts, shuffleBlock, blockSize, block))
	var mounts []*e2e.Mounted
	for host := range hosts {
		mounts = append(mounts, e2e.Mount(t, "-c", config, "--set", fmt.Sprintf("splits.train.rank=%d", host), "--set", "store.cache_dir="+t.TempDir(),
			"--set", "mount.timeout=10m")) // or what is fetched ahead on a slow machine is given up
	}
	var info struct {
		Rows int `json:"rows_per_epoch"`
	}
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, "cat", mounts[0].Path("train/info.json"))), &info))
	for epoch := range 2 {
		windows := map[uint32]bool{}
		for host, m := range mounts {
			all := []byte(e2e.Run(t, "cat", m.Path(fmt.Sprintf("train/steps=%d/batches.bin", ((epoch+1)*info.Rows+block-1)/block))))
			const size = width * (blockSize + 1)
			for row := range slices.Chunk(all[epoch*info.Rows*size:][:info.Rows*size], size) {
				first := binary.LittleEndian.Uint32(row)
				if last := binary.LittleEndian.Uint32(row[size-width:]); windows[first] || last != first+blockSize {
					t.Fatalf("epoch %d of host %d: the window from %d to %d is none, or was read before", epoch, host, first, last)
				}
				windows[first] = true
			}
		}
		if want := files*(perFile/width-1)/blockSize - files - hosts; len(windows) < want {
			t.Errorf("%d windows were read, want %d at least", len(windows), want)
		}
		if blocks, requests := counts(); blocks != files*perFile/fetchBlock || requests != blocks {
			t.Errorf("after epoch %d, %d blocks were fetched in %d requests, want each of %d once", epoch, blocks, requests, files*perFile/fetchBlock)
		}
	}
}

// A host fetches what it lacks of its share, and next to nothing else: after a fill nothing, and also where it changes its number again and again and
// there is room for little more than one share. Where there is less, a request has fetched what it needs, and people are told what helps.
func TestCacheServesShares(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	const hosts, files, perFile, rows = 4, 3, 32 * e2e.StoreBlock, 12
	const share = files * perFile / hosts
	b := e2e.NewBucket(t)
	raw := make([]byte, perFile)
	for i := range files {
		for at := 0; at < perFile; at += 4 { // a token is its position
			binary.LittleEndian.PutUint32(raw[at:], uint32((i*perFile+at)/4))
		}
		b.Put(t, fmt.Sprintf("corpus/%d.bin", i), raw)
	}
	config := b.Config(t, "s3://bucket/corpus/*.bin", fmt.Sprintf("token_dtype = \"uint32\"\nlayout = \"tokens\"\norder = \"shuffle\"\nworld = %d\n"+
		"shuffle_block = %d\nbatch_size = %d", hosts, 2*e2e.StoreBlock, rows))
	args := []string{"-c", config, "--set", "store.cache_dir=" + filepath.Join(t.TempDir(), "cache"), "--set", "memory.ahead_bytes=1048576", "--set"}
	room := append(args, fmt.Sprintf("store.cache_bytes=%d", share*116/100))
	fetched := func(do func()) int64 {
		before := b.Large.Load()
		do()
		return b.Large.Load() - before
	}
	fill := func(room []string) string {
		out, said, _ := e2e.Try(t, append([]string{e2e.PlainBatchfs, "cache", "fill", "--rank", "3", "--world", fmt.Sprint(hosts)}, room...)...)
		return out + said
	}
	if n := fetched(func() { fill(room) }); n != share {
		t.Errorf("fill fetched %d bytes for a share of %d", n, share)
	}
	m := e2e.Mount(t, room...) // which tries rank 0
	for i := range 20 {
		number, most := (3+i+i*i/3)%hosts, int64(share*11/10)
		if i == 0 {
			most = 0
		}
		path := fmt.Sprintf("train/rank=%d,seed=%d/batches.bin", number, i) // a seed, so that the kernel has not cached it
		if n := fetched(func() { e2e.Run(t, "cat", m.Path(path)) }); n > most {
			t.Errorf("change %d: as host %d, an epoch fetched %d bytes for a share of %d, may fetch %d", i, number, n, share, most)
		}
	}
	status := e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "status"}, room...)...)
	for _, want := range []string{m.Path("train/rank="), fmt.Sprintf(": %d bytes needed, %[1]d kept, room for ", share+8*share/e2e.StoreBlock)} {
		if !strings.Contains(status, want) {
			t.Errorf("cache status says\n%s\nwant %q", status, want)
		}
	}
	m.Stop(t)

	small := append(args, fmt.Sprintf("store.cache_bytes=%d", share/2))
	out := ""
	const ahead = 2 * 8 * e2e.StoreBlock // memory has eight blocks that wait to be written, and as many may be on their way
	if n := fetched(func() { out = fill(small) }); n > share/2+ahead || !strings.Contains(out, "store.cache_bytes") {
		t.Errorf("fill of a cache with room for %d bytes fetched %d, and said\n%s", share/2, n, out)
	}
	m = e2e.Mount(t, small...)
	need := int64(0)
	n := fetched(func() {
		for k := range 100 {
			blocks := map[uint32]bool{}
			batch := e2e.Run(t, "cat", m.Path(fmt.Sprintf("train/rank=3/batch/%d", k)))
			for at := 0; at < len(batch); at += 4 {
				blocks[binary.LittleEndian.Uint32([]byte(batch[at:at+4]))*4/e2e.StoreBlock] = true
			}
			need += int64(len(blocks)) * e2e.StoreBlock
		}
	})
	if n > need+4*e2e.StoreBlock { // and what is there for the next batches
		t.Errorf("%d bytes were fetched for requests that need %d", n, need)
	}
	e2e.Await(t, "a warning", func() bool { return strings.Contains(m.Out.String(), "raise store.cache_bytes") })
	out, _, err := e2e.Try(t, append([]string{e2e.PlainBatchfs, "doctor", m.Dir}, small...)...)
	if want := fmt.Sprintf("set store.cache_bytes = %d", share+8*share/e2e.StoreBlock); err == nil || !strings.Contains(out, want) {
		t.Errorf("doctor says\n%s\nwant %q", out, want)
	}
}
