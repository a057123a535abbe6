package state

import (
	"slices"
	"sync"
	"testing"

	"batchfs/internal/wait"
)

// The next reader takes the number that was sought, whoever holds another one.
func TestSeek(t *testing.T) {
	h := begin(t)
	e := &h.shared.Sequences[1]
	whole := Span{0, 10, 10}
	id := uint64(0)
	next := func() uint64 {
		id += 2
		fh, _ := h.Open(1, false, id)
		k, _, err := h.AssignBatch(Read{ID: id, FH: fh, Span: whole})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	next()
	held, _ := h.Open(1, false, 1000)
	h.AssignBatch(Read{ID: 1002, FH: held, Span: Span{0, 5, 10}})
	if was := e.Seek(100); was != 2 || e.Next() != 100 {
		t.Errorf("the cursor was %d and is %d, want 2 and 100", was, e.Next())
	}
	if was := e.Seek(50); was != 100 || !e.Moved() {
		t.Errorf("the cursor was %d, want 100; moved: %v", was, e.Moved())
	}
	if k, _, _ := h.AssignBatch(Read{ID: 1004, FH: held, Span: Span{5, 5, 10}}); k != 1 {
		t.Errorf("who held batch 1 got %d", k)
	}
	if a, b := next(), next(); a != 50 || b != 51 || e.Next() != 52 {
		t.Errorf("after a seek to 50, readers got %d and %d, and the cursor is %d", a, b, e.Next())
	}
	e.Seek(0)
	if e.Moved() {
		t.Error("where it began, it is moved")
	}
	if k := next(); k != 0 {
		t.Errorf("after a seek to 0, a reader got %d", k)
	}
	h.shared.Remove(1)
	e.Seek(9)
	h.shared.Add(1, "train", 3, 0)
	if e.Next() != 3 {
		t.Errorf("another sequence of the same number begins at %d", e.Next())
	}
}

// A worker that dies while it carries out a seek is replaced by one that does: no number is lost or comes twice.
func TestSeekIsCut(t *testing.T) {
	whole := Span{0, 10, 10}
	all := points(func() {
		h := begin(t)
		h.shared.Sequences[1].Seek(100)
		fh, _ := h.Open(1, false, 2)
		h.AssignBatch(Read{ID: 4, FH: fh, Span: whole})
	})
	if !slices.Contains(all, "sought") {
		t.Fatalf("only %s", all)
	}
	for _, point := range all {
		t.Run(point, func(t *testing.T) {
			h := begin(t)
			first, _ := h.Open(1, false, 2)
			h.AssignBatch(Read{ID: 4, FH: first, Span: whole})
			h.shared.Sequences[1].Seek(100)
			fh, _ := h.Open(1, false, 6)
			var k uint64
			if cutAt(point, 1, func() { k, _, _ = h.AssignBatch(Read{ID: 8, FH: fh, Span: whole}) }) {
				h = NewHandles(h.shared)
				k, _, _ = h.AssignBatch(Read{ID: 8 | Resent, FH: fh, Span: whole})
			}
			if next := h.shared.Sequences[1].Next(); k != 100 || next != 101 {
				t.Errorf("the reader got %d, and the cursor is %d, want 100 and 101", k, next)
			}
		})
	}
}

// A batch that is given back after a seek does not undo it: its number was passed.
func TestGivenBackAfterASeek(t *testing.T) {
	h := begin(t)
	e := &h.shared.Sequences[1]
	whole := Span{0, 10, 10}
	id := uint64(0)
	open := func(isTentative bool) uint64 {
		id += 2
		fh, _ := h.Open(1, isTentative, id)
		return fh
	}
	read := func(fh uint64, r Span, want uint64) (giveBack func()) {
		t.Helper()
		id += 2
		now := Read{ID: id, FH: fh, Span: r}
		k, added, err := h.AssignBatch(now)
		if err != nil || k != want {
			t.Errorf("batch %d (%v), want %d", k, err, want)
		}
		return func() { h.GiveBack(now, k, added) }
	}
	failing, looking, abandoned := open(false), open(true), open(true)
	read(abandoned, Span{0, 5, 10}, 0)
	giveBack := read(failing, whole, 1)
	read(looking, Span{0, 5, 10}, 2)
	h.Release(abandoned)
	e.Seek(1)
	read(open(false), whole, 1)
	giveBack()
	read(open(false), whole, 2)
	h.Release(looking)
	last := open(false)
	read(last, whole, 3)

	// What is taken after the seek is given back as ever.
	read(failing, whole, 1)
	giveBack = read(failing, whole, 4)
	giveBack()
	if next := e.Next(); next != 4 {
		t.Errorf("with batch 4 given back, the cursor is %d", next)
	}
	looking = open(true)
	e.Seek(1)
	read(looking, Span{0, 5, 10}, 1)
	h.Release(looking)
	if next := e.Next(); next != 1 {
		t.Errorf("with batch 1 given back after a seek, the cursor is %d", next)
	}
}

// Each seek among readers takes effect at once, and no number comes twice.
func TestSeekAmongReaders(t *testing.T) {
	h := begin(t)
	const readers, reads, seeks, stride = 4, 2000, 100, 1_000_000
	got := make([][]uint64, readers+1)
	read := func(reader, n int) uint64 {
		id := uint64(reader*stride+n+1) * 4
		fh, _ := h.Open(1, false, id)
		defer h.Release(fh)
		k, _, _ := h.AssignBatch(Read{ID: id + 2, FH: fh, Span: Span{0, 10, 10}})
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
	wait.End(t, "the goroutines", all.Wait)
	numbers := slices.Concat(got...)
	slices.Sort(numbers)
	if n := len(slices.Compact(numbers)); n != readers*reads+seeks {
		t.Errorf("%d numbers, want %d", n, readers*reads+seeks)
	}
}
