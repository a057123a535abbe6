package stores

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A sharedCorpus is a corpus in a store, of which each of several hosts reads a share.
type sharedCorpus struct {
	bucket *e2e.Bucket
	args   []string // arguments of commands, without store.cache_bytes
}

const hosts, files, fileBytes = 4, 3, 32 * e2e.StoreBlock
const shareBytes = files * fileBytes / hosts // size of the share of a host

func newSharedCorpus(t *testing.T) sharedCorpus {
	t.Helper()
	b := e2e.NewBucket(t)
	for i := range files {
		var raw []byte
		for pos := range fileBytes / 4 { // the value of a token is its position
			raw = binary.LittleEndian.AppendUint32(raw, uint32(i*fileBytes/4+pos))
		}
		b.Put(t, fmt.Sprintf("corpus/%d.bin", i), raw)
	}
	config := b.Config(t, "s3://bucket/corpus/*.bin", fmt.Sprintf("token_dtype = \"uint32\"\nlayout = \"tokens\"\norder = \"shuffle\"\nworld = %d\n"+
		"shuffle_block = %d\nbatch_size = 12", hosts, 2*e2e.StoreBlock))
	return sharedCorpus{b, []string{"-c", config, "--set", "store.cache_dir=" + filepath.Join(t.TempDir(), "cache"), "--set", "memory.ahead_bytes=1048576"}}
}

func (s sharedCorpus) mountArgs(room int) []string {
	return append(s.args, "--set", fmt.Sprintf("store.cache_bytes=%d", room))
}

func (s sharedCorpus) fetched(do func()) int64 {
	before := s.bucket.BlockBytes.Load()
	do()
	return s.bucket.BlockBytes.Load() - before
}

// fill fills the cache with the share of rank 3, and returns what the command prints.
func (s sharedCorpus) fill(t *testing.T, room int) string {
	t.Helper()
	out, stderr, _ := e2e.Try(t, append([]string{e2e.PlainBatchfs, "cache", "fill", fmt.Sprintf("train/rank=3,world=%d", hosts)}, s.mountArgs(room)...)...)
	return out + stderr
}

// A host fetches little more than it lacks of its share, and nothing after a fill, even if it
// repeatedly changes its rank and the cache has room for little more than one share.
func TestCacheServesShares(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	const room = shareBytes * 116 / 100
	s := newSharedCorpus(t)
	e2e.Equal(t, "bytes that fill fetched", s.fetched(func() { s.fill(t, room) }), shareBytes)
	m := e2e.Mount(t, s.mountArgs(room)...) // mounting reads a batch of rank 0
	for i := range e2e.NormalOrSoak(8, 20) {
		number, most := (3+i+i*i/3)%hosts, int64(shareBytes*11/10)
		if i == 0 {
			most = 0
		}
		// The seed is new, so the kernel has not cached this file.
		path := fmt.Sprintf("train/rank=%d,seed=%d/batches.bin", number, i)
		if n := s.fetched(func() { e2e.Run(t, "cat", m.Path(path)) }); n > most {
			t.Errorf("change %d: as host %d, an epoch fetched %d bytes for a share of %d, want at most %d", i, number, n, shareBytes, most)
		}
	}
	// The last blocks of a share may be written after they were read.
	e2e.Await(t, "the share of the last host to be in the cache, by cache status", func() (any, bool) {
		status := e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "status"}, s.mountArgs(room)...)...)
		_, last, _ := strings.Cut(status, m.Path("train/rank="))
		var needed, cached int64
		fmt.Sscanf(last[strings.Index(last, ": ")+1:], "%d bytes needed, %d in the cache", &needed, &cached)
		// There may have been no room for the first blocks, which are only in memory.
		return status, needed > 0 && cached >= needed-2*e2e.StoreBlock
	})
}

// If a share does not fit in the cache, a request fetches only what it needs, and the log and
// doctor name the remedy.
func TestCacheTooSmallForAShare(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	const room = shareBytes / 2
	// Up to eight blocks in memory wait to be written, and as many may be in transit.
	const ahead = 2 * 8 * e2e.StoreBlock
	s, out := newSharedCorpus(t), ""
	if n := s.fetched(func() { out = s.fill(t, room) }); n > room+ahead || !strings.Contains(out, "store.cache_bytes") {
		t.Errorf("fill of a cache with room for %d bytes fetched %d, want hardly more, and store.cache_bytes in the output\n%s", room, n, out)
	}
	m := e2e.Mount(t, s.mountArgs(room)...)
	need := int64(0)
	n := s.fetched(func() {
		for k := range 100 {
			blocks := map[uint32]bool{}
			for token := range slices.Chunk([]byte(e2e.Run(t, "cat", m.Path(fmt.Sprintf("train/rank=3/batch/%d", k)))), 4) {
				blocks[binary.LittleEndian.Uint32(token)*4/e2e.StoreBlock] = true
			}
			need += int64(len(blocks)) * e2e.StoreBlock
		}
	})
	if n > need+4*e2e.StoreBlock { // more blocks may be prefetched for the next batches
		t.Errorf("%d bytes were fetched for requests that need %d, want hardly more", n, need)
	}
	e2e.AwaitText(t, m.Out, "raise store.cache_bytes")
	out, _, err := e2e.Try(t, append([]string{e2e.PlainBatchfs, "doctor", m.Dir}, s.mountArgs(room)...)...)
	if want := fmt.Sprintf("set store.cache_bytes = %d", shareBytes+8*shareBytes/e2e.StoreBlock); err == nil || !strings.Contains(out, want) {
		t.Errorf("doctor prints\n%s\nwant %q", out, want)
	}
}
