package state

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"batchfs/fs/failpoint"
	"batchfs/internal/wait"
)

// begin is the handles of a mount with one sequence, number 1.
func begin(t testing.TB) *Handles {
	t.Helper()
	file, shared, err := New()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(shared.Close)
	shared.Add(shared.NewNumber(), "train", 0, 0)
	return NewHandles(shared)
}

// read asks for the number of a request by the only thread that there is.
func (h *Handles) read(fh, id uint64, r Span, version Version) (k uint64, ok bool) {
	k, _, err := h.AssignBatch(Read{FH: fh, ID: id, Span: r, Version: version})
	return k, err == nil
}

// fail is read, and the read fails.
func (h *Handles) fail(fh, id uint64, r Span, version Version) (k uint64) {
	read := Read{FH: fh, ID: id, Span: r, Version: version}
	k, added, _ := h.AssignBatch(read)
	h.GiveBack(read, k, added)
	return k
}

// died is what a worker panics with where a test cuts it off.
type died string

// cutAt runs f until it comes to a point for the n-th time, and returns whether it did.
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

// A worker that dies between any two steps of opening a file or of taking a number is replaced by one that is asked the same
// again: each number goes to one read, none is left out, and a read that was asked twice has the same one.
func TestEveryCut(t *testing.T) {
	const size = 1000
	whole := Span{0, size, size}
	all := points(func() {
		h := begin(t)
		fh, _ := h.Open(1, false, 1)
		h.read(fh, 2, whole, 0)
	})
	if len(all) < 10 {
		t.Fatalf("only %d points: %s", len(all), all)
	}
	for _, point := range all {
		for n := range 4 {
			t.Run(fmt.Sprint(point, " ", n+1), func(t *testing.T) {
				h := begin(t)
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
						fh, ok := h.Open(1, false, id)
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
							k, ok := h.read(fh, id, whole, 0)
							if !ok {
								t.Fatal("no number")
							}
							got[k]++
						})
					}
				}
				for k := range uint64(12) {
					if got[k] != 1 {
						t.Errorf("number %d went to %d reads: %v", k, got[k], got)
					}
				}
				if c := h.shared.Sequences[1].Cursor.Load(); c != 12 {
					t.Errorf("cursor is %d", c)
				}
				if used := h.shared.slotsUsed.Load(); used > 4 {
					t.Errorf("%d slots for 3 handles", used)
				}
			})
		}
	}
}

// A number that a failed read gave back is for whoever reads next, also if the failed one comes again.
func TestFailedReadComesAgain(t *testing.T) {
	const size = 1000
	whole := Span{0, size, size}
	h := begin(t)
	fh, _ := h.Open(1, false, 2)
	h.fail(fh, 4, whole, 0)
	first, _ := h.read(fh, 6, whole, 0)
	h = NewHandles(h.shared)
	if again, _ := h.read(fh, 4|Resent, whole, 0); first != 0 || again != 1 {
		t.Errorf("the next read has %d, and the failed one then %d", first, again)
	}
}

// A read that comes again after the tokens have changed has the number that it had, of the new tokens, and the next read the
// next one. Threads that share the handle have theirs.
func TestOtherTokensWhenItComesAgain(t *testing.T) {
	const size = 1000
	whole := Span{0, size, size}
	h := begin(t)
	fh, _ := h.Open(1, false, 2)
	for _, id := range []uint64{4, 6} { // neither is answered
		h.read(fh, id, whole, 0)
	}
	h = NewHandles(h.shared)
	for want, id := range []uint64{4 | Resent, 6 | Resent, 8, 10} {
		if k, ok := h.read(fh, id, whole, 1); !ok || k != uint64(want) {
			t.Errorf("read %#x has number %d, want %d", id, k, want)
		}
	}
}

func TestConcurrentHandlesShareNoNumber(t *testing.T) {
	h := begin(t)
	cursor := &h.shared.Sequences[1].Cursor
	const workers, rounds = 8, 1000
	taken := make([][]uint64, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				fh, ok := h.Open(1, false, 0)
				if !ok {
					t.Error("no slot")
				}
				k, _ := h.read(fh, uint64(w*rounds+i+1), Span{0, 1000, 1000}, 0)
				taken[w] = append(taken[w], k)
				h.Release(fh)
			}
		})
	}
	wait.End(t, "the goroutines", wg.Wait)
	seen := map[uint64]bool{}
	for _, numbers := range taken {
		for _, n := range numbers {
			seen[n] = true
		}
	}
	if len(seen) != workers*rounds || cursor.Load() != workers*rounds {
		t.Errorf("%d numbers for %d handles, cursor %d", len(seen), workers*rounds, cursor.Load())
	}
	if used := h.shared.slotsUsed.Load(); used > workers {
		t.Errorf("%d slots used for %d handles at once", used, workers)
	}
}

func TestTooManyHandles(t *testing.T) {
	h := begin(t)
	seen := map[uint64]bool{}
	var last uint64
	for range MaxHandles {
		fh, ok := h.Open(1, false, 0)
		last = fh
		if !ok || seen[fh] {
			t.Fatalf("handle %d: %v, seen %v", fh, ok, seen[fh])
		}
		seen[fh] = true
	}
	if _, ok := h.Open(1, false, 0); ok {
		t.Error("a slot too many")
	}
	h.Release(last)
	fh, ok := h.Open(1, false, 0)
	if !ok || seen[fh] || h.slot(fh) != h.slot(last) {
		t.Errorf("after a release: %d %v", fh, ok)
	}
	h.Release(last) // again, as another process may be asked to
	if _, ok := h.Open(1, false, 0); ok {
		t.Error("a slot was released that another handle has")
	}
}

func TestNumbersOfOtherVersions(t *testing.T) {
	const size = 1000
	h := begin(t)
	cursor := &h.shared.Sequences[1].Cursor
	fh, _ := h.Open(1, false, 0)
	id := uint64(0)
	read := func(off, n int64, version Version) string {
		id++
		k, ok := h.read(fh, id, Span{off, n, size}, version)
		return fmt.Sprint(k, ok)
	}
	for i, step := range []struct {
		off, n  int64
		version Version
		want    string
	}{
		{0, size, 0, "0 true"},
		{0, 400, 0, "1 true"},
		{400, 600, 1, "0 false"},
		{400, 600, 0, "1 true"}, // of one who looked before
		{0, size, 1, "2 true"},
		{0, 400, 1, "3 true"},
		{0, size, 2, "3 true"}, // from its beginning, in other tokens
		{0, size, 2, "4 true"},
		{999, 1, 3, "0 false"},
		{0, size, 3, "5 true"},
		{996, 4, 3, "5 true"},
		{0, 4, 3, "6 true"},
		{0, 4, 1 << 40, "6 true"},
		{4, 996, 1 << 40, "6 true"},
		{0, size, 1 << 40, "7 true"},
	} {
		if got := read(step.off, step.n, step.version); got != step.want {
			t.Errorf("step %d, %+v: %s", i, step, got)
		}
	}
	if got := cursor.Load(); got != 8 {
		t.Errorf("cursor is %d", got)
	}
}

// A batch that was delivered whole stays so, also when its end is read once more and that read fails.
func TestFailedReadOfTheEndAgain(t *testing.T) {
	const size = 1000
	whole, end := Span{0, size, size}, Span{900, 100, size}
	h := begin(t)
	fh, _ := h.Open(1, false, 2)
	h.read(fh, 4, whole, 0)
	h.fail(fh, 6, end, 0)
	if k, ok := h.read(fh, 8, whole, 0); !ok || k != 1 {
		t.Errorf("the next read got batch %d, want 1", k)
	}
	// While one of which no read of the end succeeded is not.
	fh, _ = h.Open(1, false, 10)
	k, _ := h.read(fh, 12, Span{0, 900, size}, 0)
	h.fail(fh, 14, end, 0)
	if again, ok := h.read(fh, 16, whole, 0); !ok || again != k {
		t.Errorf("a batch without its end went on to batch %d, want %d", again, k)
	}
}
