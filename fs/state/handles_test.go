package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"batchfs/cache/array"
	"batchfs/internal/failpoint"
)

const noEnd = array.MaxBatches

// newTestHandles returns the handles of a mount with one sequence, number 1.
func newTestHandles(t testing.TB) *Handles {
	t.Helper()
	file, shared, err := New()
	noError(t, err)
	file.Close()
	t.Cleanup(shared.Close)
	shared.Add(shared.NewNumber(), "train", 0, 0)
	return NewHandles(shared)
}

// read returns the number assigned to a request of thread 0.
func (h *Handles) read(fh, id uint64, r FileRange, version Version) (k uint64, ok bool) {
	k, _, err := h.assignBatch(NextRead{Batches: noEnd, FH: fh, ID: id, FileRange: r, Version: version})
	return k, err == nil
}

type failpointPanic string // name of the failpoint at which a worker panics

// killAt runs f until it reaches a failpoint for the n-th time, and reports whether it did.
func killAt(point string, n int, f func()) (dead bool) {
	defer func(old func(string)) { failpoint.Hit = old }(failpoint.Hit)
	failpoint.Hit = func(name string) {
		if name == point {
			if n--; n == 0 {
				panic(failpointPanic(point))
			}
		}
	}
	defer func() {
		if r := recover(); r != nil && r != failpointPanic(point) {
			panic(r)
		} else {
			dead = r != nil
		}
	}()
	f()
	return false
}

// failpointsIn returns the failpoints that f reaches, sorted.
func failpointsIn(f func()) []string {
	defer func(old func(string)) { failpoint.Hit = old }(failpoint.Hit)
	seen := map[string]bool{}
	failpoint.Hit = func(name string) { seen[name] = true }
	f()
	return slices.Sorted(maps.Keys(seen))
}

// If a worker dies at any failpoint of Open, Seek or AssignBatch and its successor gets the same
// requests again, each number goes to one read, and none is skipped.
func TestKilledWorkers(t *testing.T) {
	const size = 1000
	file := FileRange{0, size, size}
	const first = 100
	all := failpointsIn(func() {
		h := newTestHandles(t)
		h.shared.Sequences[1].Seek(first)
		fh, _ := h.Open(1, 0, false, 1)
		h.read(fh, 2, file, 0)
	})
	if len(all) < 10 {
		t.Fatalf("only %d failpoints: %s", len(all), all)
	}
	for _, point := range all {
		for n := range 4 {
			t.Run(fmt.Sprint(point, " ", n+1), func(t *testing.T) {
				h := newTestHandles(t)
				h.shared.Sequences[1].Seek(first)
				id, dead := uint64(0), false
				// ask sends a request to the worker and, if the worker dies, to its successor.
				ask := func(f func(id uint64)) {
					id += 2
					if dead {
						f(id)
					} else if dead = killAt(point, n+1, func() { f(id) }); dead {
						h = NewHandles(h.shared)
						f(id | Resent)
					}
				}
				got := map[uint64]int{}
				var handles []uint64
				for range 3 {
					ask(func(id uint64) {
						fh, ok := h.Open(1, 0, false, id)
						if !ok {
							t.Fatal("no free slot")
						}
						handles = append(handles, fh)
					})
				}
				if n := len(slices.Compact(slices.Sorted(slices.Values(handles)))); n != 3 {
					t.Fatalf("handles %v", handles)
				}
				for range 4 {
					for _, fh := range handles {
						ask(func(id uint64) {
							k, ok := h.read(fh, id, file, 0)
							if !ok {
								t.Fatal("no number")
							}
							got[k]++
						})
					}
				}
				for k := uint64(first); k < first+12; k++ {
					if got[k] != 1 {
						t.Errorf("number %d went to %d reads: %v", k, got[k], got)
					}
				}
				if c := h.shared.Sequences[1].Cursor.Load(); c != first+12 {
					t.Errorf("cursor is %d", c)
				}
				if used := h.shared.slotsUsed.Load(); used > 4 {
					t.Errorf("3 handles used %d slots", used)
				}
			})
		}
	}
}

// If a worker dies while it assigns a number, and its successor fails the request without handling
// it, the number is returned: the next read gets it.
func TestResentRequestFails(t *testing.T) {
	const size = 1000
	file := FileRange{0, size, size}
	setUp := func() (h *Handles, fh uint64) {
		h = newTestHandles(t)
		fh, _ = h.Open(1, 0, false, 2)
		return h, fh
	}
	points := failpointsIn(func() {
		h, fh := setUp()
		h.read(fh, 4, file, 0)
	})
	for _, point := range append(points, "none") {
		h, fh := setUp()
		killAt(point, 1, func() { h.read(fh, 4, file, 0) })
		h = NewHandles(h.shared)
		for range 2 { // the second time, it does nothing
			h.Rollback(4 | Resent)
		}
		for want := range uint64(2) {
			if k, ok := h.read(fh, 6+2*want, file, 0); !ok || k != want {
				t.Errorf("killed at %s: the read gets %d (%v), want %d", point, k, ok, want)
			}
		}
	}
}

func TestTooManyHandles(t *testing.T) {
	h := newTestHandles(t)
	seen := map[uint64]bool{}
	var last uint64
	for range MaxHandles {
		fh, ok := h.Open(1, 0, false, 0)
		last = fh
		if !ok || seen[fh] {
			t.Fatalf("handle %d: %v, seen %v", fh, ok, seen[fh])
		}
		seen[fh] = true
	}
	if _, ok := h.Open(1, 0, false, 0); ok {
		t.Error("more than MaxHandles were opened")
	}
	h.Release(last)
	fh, ok := h.Open(1, 0, false, 0)
	if !ok || seen[fh] || h.slot(fh) != h.slot(last) {
		t.Errorf("after a release: %d %v", fh, ok)
	}
	h.Release(last) // again: the kernel may repeat the request
	if _, ok := h.Open(1, 0, false, 0); ok {
		t.Error("a second release freed the slot of another handle")
	}
}

// A read that fails after a seek does not return the number that its handle took again since.
func TestFailureAfterASeekBack(t *testing.T) {
	h := newTestHandles(t)
	fh, _ := h.Open(1, 7, false, 2)
	request := NextRead{ID: 4, FH: fh, Thread: 1, FileRange: FileRange{0, 8, 8}, Batches: noEnd}
	assign := func() uint64 {
		t.Helper()
		k, err := h.AssignBatch(request, nil)
		noError(t, err)
		return k
	}
	assign()
	h.shared.Sequences[1].Seek(0)
	request.ID, request.Thread = 6, 2
	assign()
	h.Commit(6)
	h.Rollback(4)
	request.ID = 8
	if k := assign(); k != 1 {
		t.Errorf("after batch 0 came batch %d", k)
	}
}
