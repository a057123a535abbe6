package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The delivered ranges always agree with a table of bytes.
func TestRanges(t *testing.T) {
	const size = 200
	h := newTestHandles(t)
	fh, _ := h.Open(1, 0, false, 1)
	s := h.slot(fh)
	s.size.Store(size)
	var table [size]bool
	for step := range 20_000 {
		from := rand.Int64N(size)
		r := NextRead{Batches: noEnd, FH: fh, FileRange: FileRange{from, 1 + rand.Int64N(min(size-from, 20)), size}}
		isAdded := rand.IntN(2) == 0
		if isAdded {
			fresh := slices.Contains(table[r.Off:r.end()], false)
			if added := h.addRange(r, h.withRange(nil, r)); added != fresh {
				t.Fatalf("step %d: %v, want %v", step, added, fresh)
			}
		} else {
			h.removeRange(r)
		}
		for i := r.Off; i < r.end(); i++ {
			table[i] = isAdded
		}
		for i, has := range table {
			if h.covers(fh, int64(i)) != has {
				t.Fatalf("step %d, %+v: byte %d: %v, want %v", step, r.FileRange, i, !has, has)
			}
		}
		if ranges := h.rangesOf(fh); !slices.IsSortedFunc(ranges, func(a, b byteRange) int { return int(a.to-b.from) + 1 }) {
			t.Fatalf("ranges that touch: %v", ranges)
		}
	}
}

func (h *Handles) covers(fh uint64, off int64) bool {
	return slices.ContainsFunc(h.rangesOf(fh), func(p byteRange) bool { return p.from <= off && off < p.to })
}

func TestTooManyRanges(t *testing.T) {
	h := newTestHandles(t)
	fh, _ := h.Open(1, 0, false, 1)
	const size = 1000
	for i := range int64(maxRanges + 1) {
		_, _, err := h.assignBatch(NextRead{Batches: noEnd, FH: fh, ID: uint64(i + 2), FileRange: FileRange{2 * i, 1, size}})
		if want := i == maxRanges; errors.Is(err, ErrRanges) != want {
			t.Fatalf("range %d: %v", i, err)
		}
	}
	if k, ok := h.read(fh, 1000, FileRange{0, size, size}, 0); !ok || k != 0 {
		t.Errorf("reading the whole batch afterwards: batch %d, %v, want 0", k, ok)
	}
	if k, ok := h.read(fh, 1002, FileRange{0, size, size}, 0); !ok || k != 1 {
		t.Errorf("then: batch %d, %v, want 1", k, ok)
	}
}

// A read that fails because of too many ranges leaves nothing behind: once all others have failed,
// too, the number goes back.
func TestTooManyRangesAreNotCounted(t *testing.T) {
	h := newTestHandles(t)
	fh, _ := h.Open(1, 0, false, 1)
	for i := range int64(maxRanges + 3) {
		r := NextRead{Batches: noEnd, FH: fh, ID: uint64(2*i + 2), Thread: 7, Cut: i > maxRanges, FileRange: FileRange{2 * i, 1, 1000}}
		if _, err := h.AssignBatch(r, nil); errors.Is(err, ErrRanges) != (i >= maxRanges) {
			t.Fatalf("range %d: %v", i, err)
		}
	}
	if off := h.slot(fh).cutOffset.Load(); off != 0 {
		t.Errorf("a failed read continues at %d", off)
	}
	for i := range uint64(maxRanges) {
		h.Rollback(2*i + 2)
	}
	if next := h.shared.Sequences[1].Next(); next != 0 || h.stateOf(fh) != empty {
		t.Errorf("the next number is %d, and the handle is in state %d, want 0 and %d", next, h.stateOf(fh), empty)
	}
}

// Threads that share a handle each get their own batch, although the kernel cuts each read(2) into
// three requests, in whatever order these arrive and wherever workers die.
func TestCutReads(t *testing.T) {
	const part = 100
	ranges := []FileRange{{0, part, 3 * part}, {part, part, 3 * part}, {2 * part, part, 3 * part}}
	const threads, batches = 4, 20
	run := func(t *testing.T, random *rand.Rand, point string) {
		h := newTestHandles(t)
		fh, _ := h.Open(1, 0, false, 1)
		id := uint64(2)
		next, batch := [threads]int{}, [threads]uint64{}
		got := map[uint64]bool{}
		for len(got) < batches {
			i := random.IntN(threads)
			id += 2
			r := NextRead{Batches: noEnd, FH: fh, ID: id, Thread: uint64(i), FileRange: ranges[next[i]], Cut: next[i] < 2}
			var k uint64
			var err error
			ask := func() { k, _, err = h.assignBatch(r) }
			if random.IntN(4) > 0 {
				ask()
			} else if killAt(point, 1, ask) {
				h = NewHandles(h.shared)
				r.ID |= Resent
				ask()
			}
			switch {
			case err != nil:
				t.Fatal(err)
			case next[i] == 0:
				batch[i] = k
			case k != batch[i]:
				t.Fatalf("thread %d got part %d of batch %d after it began batch %d", i, next[i], k, batch[i])
			}
			if next[i] = (next[i] + 1) % 3; next[i] == 0 {
				if got[k] {
					t.Fatalf("batch %d went to two threads", k)
				}
				got[k] = true
			}
		}
		if c := h.shared.Sequences[1].Cursor.Load(); c >= batches+threads {
			t.Fatalf("cursor is %d", c)
		}
	}
	var all []string
	for seed := range uint64(200) {
		all = append(all, failpointsIn(func() { run(t, rand.New(rand.NewPCG(seed, 0)), "") })...)
	}
	slices.Sort(all)
	for _, point := range slices.Compact(all) {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(point, " ", seed), func(t *testing.T) { run(t, rand.New(rand.NewPCG(seed, 1)), point) })
		}
	}
}
