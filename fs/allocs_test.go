//go:build !race

package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// steadyReads returns a function that sends the guard a READ of next, and allocates nothing itself.
func steadyReads(t *testing.T, depth int) (read func()) {
	s := countingBatches("train", 48<<10)
	s.read = func(dst []byte, k uint64, off int64) error { return nil }
	tr := newTestTree(t, s)
	tr.prefetcher.depth = depth
	guarded := tr.guarded(1)
	r := tr.openFile(t, "train/next", 0)
	in := &fuse.ReadIn{Fh: r.fh, Size: 48 << 10, ReadFlags: fuse.READ_LOCKOWNER}
	in.NodeId = uint64(r.node)
	buf := make([]byte, in.Size)
	return func() {
		in.Unique = lastUnique.Add(2)
		result, status := guarded.Read(nil, in, buf)
		if !status.Ok() {
			t.Fatal(status)
		}
		result.Done()
	}
}

func TestRequestsAllocateNothing(t *testing.T) {
	for _, depth := range []int{0, 2} {
		if n := testing.AllocsPerRun(1000, steadyReads(t, depth)); n > 0 {
			t.Errorf("depth %d: %v allocations per request", depth, n)
		}
	}
}
