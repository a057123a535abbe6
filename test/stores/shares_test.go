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

// shares is a corpus of four shares of hosts in a store, and what reads it.
type shares struct {
	bucket *e2e.Bucket
	args   []string // of commands, but for store.cache_bytes
}

const hosts, files, perFile = 4, 3, 32 * e2e.StoreBlock
const share = files * perFile / hosts

func newShares(t *testing.T) shares {
	t.Helper()
	b := e2e.NewBucket(t)
	for i := range files {
		var raw []byte
		for at := range perFile / 4 { // a token is its position
			raw = binary.LittleEndian.AppendUint32(raw, uint32(i*perFile/4+at))
		}
		b.Put(t, fmt.Sprintf("corpus/%d.bin", i), raw)
	}
	config := b.Config(t, "s3://bucket/corpus/*.bin", fmt.Sprintf("token_dtype = \"uint32\"\nlayout = \"tokens\"\norder = \"shuffle\"\nworld = %d\n"+
		"shuffle_block = %d\nbatch_size = 12", hosts, 2*e2e.StoreBlock))
	return shares{b, []string{"-c", config, "--set", "store.cache_dir=" + filepath.Join(t.TempDir(), "cache"), "--set", "memory.ahead_bytes=1048576"}}
}

// with are the arguments for a cache of so many bytes.
func (s shares) with(room int) []string {
	return append(s.args, "--set", fmt.Sprintf("store.cache_bytes=%d", room))
}

// fetched are the bytes that do fetches.
func (s shares) fetched(do func()) int64 {
	before := s.bucket.Large.Load()
	do()
	return s.bucket.Large.Load() - before
}

// fill fills the cache with the share of rank 3, and returns what it says.
func (s shares) fill(t *testing.T, room int) string {
	t.Helper()
	out, said, _ := e2e.Try(t, append([]string{e2e.PlainBatchfs, "cache", "fill", "--rank", "3", "--world", fmt.Sprint(hosts)}, s.with(room)...)...)
	return out + said
}

// A host fetches what it lacks of its share, and next to nothing else: after a fill nothing, and also where it changes its number again and again and
// there is room for little more than one share.
func TestCacheServesShares(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	const room = share * 116 / 100
	s := newShares(t)
	e2e.Equal(t, "bytes that fill fetched", s.fetched(func() { s.fill(t, room) }), share)
	m := e2e.Mount(t, s.with(room)...) // which tries rank 0
	for i := range 20 {
		number, most := (3+i+i*i/3)%hosts, int64(share*11/10)
		if i == 0 {
			most = 0
		}
		path := fmt.Sprintf("train/rank=%d,seed=%d/batches.bin", number, i) // a seed, so that the kernel has not cached it
		if n := s.fetched(func() { e2e.Run(t, "cat", m.Path(path)) }); n > most {
			t.Errorf("change %d: as host %d, an epoch fetched %d bytes for a share of %d, may fetch %d", i, number, n, share, most)
		}
	}
	e2e.Await(t, "the share of the last host in cache status, kept", func() bool { // its last blocks are written after they were read
		status := e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "status"}, s.with(room)...)...)
		_, last, _ := strings.Cut(status, m.Path("train/rank="))
		var needed, kept int64
		fmt.Sscanf(last[strings.Index(last, ": ")+1:], "%d bytes needed, %d kept", &needed, &kept)
		return needed > 0 && kept >= needed-2*e2e.StoreBlock // the first ones may have got no room, and are in memory
	})
}

// Where there is room for less than a share, a request has fetched what it needs, and people are told what helps.
func TestCacheTooSmallForAShare(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	const room = share / 2
	const ahead = 2 * 8 * e2e.StoreBlock // memory has eight blocks that wait to be written, and as many may be on their way
	s, out := newShares(t), ""
	if n := s.fetched(func() { out = s.fill(t, room) }); n > room+ahead || !strings.Contains(out, "store.cache_bytes") {
		t.Errorf("fill of a cache with room for %d bytes fetched %d, and said\n%s", room, n, out)
	}
	m := e2e.Mount(t, s.with(room)...)
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
	if n > need+4*e2e.StoreBlock { // and what is there for the next batches
		t.Errorf("%d bytes were fetched for requests that need %d", n, need)
	}
	e2e.Await(t, "a warning", func() bool { return strings.Contains(m.Out.String(), "raise store.cache_bytes") })
	out, _, err := e2e.Try(t, append([]string{e2e.PlainBatchfs, "doctor", m.Dir}, s.with(room)...)...)
	if want := fmt.Sprintf("set store.cache_bytes = %d", share+8*share/e2e.StoreBlock); err == nil || !strings.Contains(out, want) {
		t.Errorf("doctor says\n%s\nwant %q", out, want)
	}
}
