package state

import (
	"slices"
	"sync"
	"testing"

	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

var noError = require.NoError

// Each seek takes effect immediately while others read, no number is assigned twice, and slots are
// reused.
func TestSeekAmongReaders(t *testing.T) {
	h := newTestHandles(t)
	const readers, reads, seeks, stride = 4, 2000, 100, 1_000_000
	got := make([][]uint64, readers+1)
	read := func(reader, n int) uint64 {
		id := uint64(reader*stride+n+1) * 4
		fh, _ := h.Open(1, 0, false, id)
		defer h.Release(fh)
		k, _ := h.AssignBatch(ReadRequest{ID: id + 2, FH: fh, FileRange: FileRange{0, 10, 10}}, nil)
		h.Commit(id + 2)
		got[reader] = append(got[reader], k)
		return k
	}
	var all sync.WaitGroup
	for i := range readers {
		all.Go(func() {
			for n := range reads {
				read(i, n)
			}
		})
	}
	for n := range seeks {
		h.shared.Sequences[1].Seek(uint64(n+1) * stride)
		if k := read(readers, n); k/stride != uint64(n+1) {
			t.Errorf("after a seek to %d a reader got %d", (n+1)*stride, k)
		}
	}
	testwait.End(t, "the goroutines", all.Wait)
	numbers := slices.Concat(got...)
	slices.Sort(numbers)
	if used := h.shared.slotsUsed.Load(); used > readers+1 {
		t.Errorf("%d slots for %d open handles", used, readers+1)
	}
	if n := len(slices.Compact(numbers)); n != readers*reads+seeks {
		t.Errorf("%d numbers, want %d", n, readers*reads+seeks)
	}
}
