package stores

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
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
	files, perFile, fetchBlock, shuffleBlock, blockSize := 3, 4<<20, e2e.StoreBlock, 2*e2e.StoreBlock, 100
	if e2e.InSoak() {
		files, perFile, fetchBlock, shuffleBlock, blockSize = 8, 256<<20, 4<<20, 64<<20, 1024
	}
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
	read := make([][2]map[uint32]bool, hosts) // by epoch: the windows' first tokens
	var mounts []*e2e.Mounted
	for host := range hosts {
		mounts = append(mounts, e2e.Mount(t, "-c", config, "--set", fmt.Sprintf("splits.train.rank=%d", host), "--set", "store.cache_dir="+t.TempDir(), "--set",
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
func readEpoch(t *testing.T, m *e2e.Mounted, epoch, batchSize, blockSize int) (map[uint32]bool, error) {
	var info struct {
		Rows int `json:"rows_per_epoch"`
	}
	if err := json.Unmarshal([]byte(e2e.Run(t, "cat", m.Path("train/info.json"))), &info); err != nil {
		return nil, err
	}
	steps := ((epoch+1)*info.Rows + batchSize - 1) / batchSize
	size := 4 * (blockSize + 1)
	cmd := e2e.Command(t, "tail", "-c", fmt.Sprint("+", 1+epoch*info.Rows*size), m.Path(fmt.Sprintf("train/steps=%d/batches.bin", steps)))
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
		path := fmt.Sprintf("train/rank=%d,seed=%d/batches.bin", number, i) // a seed, so that the kernel has none of it
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
