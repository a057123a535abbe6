//go:build !race

package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// steady returns a function that asks for the next batch as the kernel does, without what the
// test's reader allocates.
func steady(tb testing.TB, ahead int) (ask func()) {
	s := counting("train", 48<<10)
	s.read = func(dst []byte, k uint64, off int64) error { return nil }
	tr := plant(tb, s)
	tr.prefetcher.depth = ahead
	guarded := tr.guarded(1)
	r := tr.reader(tb, "train/next", 0)
	in := &fuse.ReadIn{Fh: r.fh, Size: 48 << 10, ReadFlags: fuse.READ_LOCKOWNER}
	in.NodeId = uint64(r.node)
	buf := make([]byte, in.Size)
	return func() {
		in.Unique = lastUnique.Add(2)
		result, status := guarded.Read(nil, in, buf)
		if !status.Ok() {
			tb.Fatal(status)
		}
		result.Done()
	}
}

func TestRequestsAllocateNothing(t *testing.T) {
	for _, ahead := range []int{0, 2} {
		if n := testing.AllocsPerRun(1000, steady(t, ahead)); n > 0 {
			t.Errorf("ahead %d: %v allocations a request", ahead, n)
		}
	}
}

// What a request costs besides the bytes of its batch.
func BenchmarkRead(b *testing.B) {
	for name, ahead := range map[string]int{"now": 0, "ahead": 2} {
		b.Run(name, func(b *testing.B) {
			ask := steady(b, ahead)
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}
