package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"batchfs/internal/failpoint"
)

// begin is the handles of a mount with one sequence, number 1.
func begin(t testing.TB) *Handles {
	t.Helper()
	file, shared, err := New()
	noError(t, err)
	file.Close()
	t.Cleanup(shared.Close)
	shared.Add(shared.NewNumber(), "train", 0, 0)
	return NewHandles(shared)
}

// read asks for the number of a request by the only thread that there is.
func (h *Handles) read(fh, id uint64, r Span, version Version) (k uint64, ok bool) {
	k, _, err := h.assignBatch(ReadRequest{FH: fh, ID: id, Span: r, Version: version})
	return k, err == nil
}

// died is what a worker panics with where a test cuts it off.
type died string

// cutAt runs f until it reaches a point for the n-th time, and returns whether it did.
func cutAt(point string, n int, f func()) (dead bool) {
	defer func(was func(string)) { failpoint.Hit = was }(failpoint.Hit)
	failpoint.Hit = func(at string) {
		if at == point {
			if n--; n == 0 {
				panic(died(point))
			}
		}
	}
	defer func() {
		if r := recover(); r != nil && r != died(point) {
			panic(r)
		} else {
			dead = r != nil
		}
	}()
	f()
	return false
}

// points are where f can be cut.
func points(f func()) []string {
	defer func(was func(string)) { failpoint.Hit = was }(failpoint.Hit)
	seen := map[string]bool{}
	failpoint.Hit = func(at string) { seen[at] = true }
	f()
	return slices.Sorted(maps.Keys(seen))
}

// A worker that dies between any two steps of opening a file, of a seek, or of taking a number is replaced by one that is sent the same
// requests again: each number goes to one read, none is left out, and a read that was sent twice has the same one.
func TestEveryCut(t *testing.T) {
	const size = 1000
	file := Span{0, size, size}
	const first = 100
	all := points(func() {
		h := begin(t)
		h.shared.Sequences[1].Seek(first)
		fh, _ := h.Open(1, 0, false, 1)
		h.read(fh, 2, file, 0)
	})
	if len(all) < 10 {
		t.Fatalf("only %d points: %s", len(all), all)
	}
	for _, point := range all {
		for n := range 4 {
			t.Run(fmt.Sprint(point, " ", n+1), func(t *testing.T) {
				h := begin(t)
				h.shared.Sequences[1].Seek(first)
				id, dead := uint64(0), false
				// ask asks the worker, and if it dies of that its successor.
				ask := func(f func(id uint64)) {
					id += 2
					if dead {
						f(id)
					} else if dead = cutAt(point, n+1, func() { f(id) }); dead {
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
							t.Fatal("no slot")
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
					t.Errorf("%d slots for 3 handles", used)
				}
			})
		}
	}
}

func TestTooManyHandles(t *testing.T) {
	h := begin(t)
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
		t.Error("a slot too many")
	}
	h.Release(last)
	fh, ok := h.Open(1, 0, false, 0)
	if !ok || seen[fh] || h.slot(fh) != h.slot(last) {
		t.Errorf("after a release: %d %v", fh, ok)
	}
	h.Release(last) // again, as another process may be asked to
	if _, ok := h.Open(1, 0, false, 0); ok {
		t.Error("a slot was released that another handle has")
	}
}
