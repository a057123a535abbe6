package state

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
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
		k, _ := h.AssignBatch(NextRead{Batches: noEnd, ID: id + 2, FH: fh, FileRange: FileRange{0, 10, 10}}, nil)
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

// After the last number, reads fail with the way back. Only a sequence that max_epochs ends is said
// to have used them up.
func TestReadsBeyondTheEnd(t *testing.T) {
	for batches, want := range map[uint64]string{7: "max_epochs", noEnd: "batch numbers end at 1099511627775: begin with an earlier one, for next with batchfs seek"} {
		h := newTestHandles(t)
		h.shared.Sequences[1].Seek(batches - 1)
		for _, fails := range []bool{false, true} {
			fh, _ := h.Open(1, 0, false, 2)
			k, err := h.AssignBatch(NextRead{Batches: batches, ID: 4, FH: fh, FileRange: FileRange{0, 10, 10}}, nil)
			switch {
			case !fails && (err != nil || k != batches-1):
				t.Errorf("the last of %d batches: %d, %v", batches, k, err)
			case fails && (!errors.Is(err, syscall.ENODATA) || !strings.Contains(err.Error(), want)):
				t.Errorf("after %d batches: %v, want %s", batches, err, want)
			}
		}
	}
}
