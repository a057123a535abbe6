package state

import "testing"

// A turn is a request in the tests below: part i of the n parts of a batch, by a thread.
type turn struct {
	fh, id, thread uint64
	i, n           int64
	version        Version
	whole          bool // the kernel has not cut the read(2) here
}

func (r turn) read() Read {
	const part = 100
	return Read{FH: r.fh, ID: r.id, Thread: r.thread, Version: r.version, Span: Span{r.i * part, part, r.n * part}, Cut: r.i < r.n-1 && !r.whole}
}

// took is the batch that r gets, or -1 where it gets an error.
func (h *Handles) took(r turn) int {
	if k, _, err := h.AssignBatch(r.read()); err == nil {
		return int(k)
	}
	return -1
}

// fails is a request that gets a batch and cannot read it.
func (h *Handles) fails(r turn) {
	k, added, _ := h.AssignBatch(r.read())
	h.GiveBack(r.read(), k, added)
}

// Two threads share a handle. A is in the middle of batch 0 when B begins batch 1, and something goes wrong. A gets the rest of
// batch 0, or an error, and never a part of batch 1.
func TestInTheMiddle(t *testing.T) {
	const a, b = 1, 2
	for name, test := range map[string]func(h *Handles, fh uint64) (restOfA int){
		"A's second part comes again": func(h *Handles, fh uint64) int {
			h.took(turn{fh: fh, id: 4, thread: a, i: 0, n: 3})
			h.took(turn{fh: fh, id: 6, thread: a, i: 1, n: 3})
			h.took(turn{fh: fh, id: 8, thread: b, i: 0, n: 3})
			h = NewHandles(h.shared)
			return h.took(turn{fh: fh, id: 6 | Resent, thread: a, i: 1, n: 3})
		},
		"A's second part fails, and A tries again": func(h *Handles, fh uint64) int {
			h.took(turn{fh: fh, id: 4, thread: a, i: 0, n: 2})
			h.took(turn{fh: fh, id: 6, thread: b, i: 0, n: 2})
			h.fails(turn{fh: fh, id: 8, thread: a, i: 1, n: 2})
			return h.took(turn{fh: fh, id: 10, thread: a, i: 1, n: 2})
		},
		"A's second part fails before B begins": func(h *Handles, fh uint64) int {
			h.took(turn{fh: fh, id: 4, thread: a, i: 0, n: 2})
			h.fails(turn{fh: fh, id: 6, thread: a, i: 1, n: 2})
			if b0, b1 := h.took(turn{fh: fh, id: 8, thread: b, i: 0, n: 2}), h.took(turn{fh: fh, id: 10, thread: b, i: 1, n: 2}); b0 != 1 || b1 != 1 {
				return -2
			}
			return h.took(turn{fh: fh, id: 12, thread: a, i: 1, n: 2})
		},
		"the tokens change, and A tries again": func(h *Handles, fh uint64) int {
			h.took(turn{fh: fh, id: 4, thread: a, i: 0, n: 2})
			h.took(turn{fh: fh, id: 6, thread: b, i: 0, n: 2, version: 1})
			if h.took(turn{fh: fh, id: 8, thread: a, i: 1, n: 2, version: 1}) != -1 {
				return -2
			}
			return h.took(turn{fh: fh, id: 10, thread: a, i: 1, n: 2, version: 1})
		},
		"A's second part fails, and is read of other tokens": func(h *Handles, fh uint64) int {
			h.took(turn{fh: fh, id: 4, thread: a, i: 0, n: 2})
			h.fails(turn{fh: fh, id: 6, thread: a, i: 1, n: 2})
			h.took(turn{fh: fh, id: 8, thread: b, i: 0, n: 2, version: 1})
			if h.took(turn{fh: fh, id: 6, thread: a, i: 1, n: 2, version: 1}) != -1 {
				return -2
			}
			return -1
		},
		"both first parts come again, of other tokens": func(h *Handles, fh uint64) int {
			h.took(turn{fh: fh, id: 4, thread: a, i: 0, n: 2})
			h.took(turn{fh: fh, id: 6, thread: b, i: 0, n: 2})
			h = NewHandles(h.shared)
			h.took(turn{fh: fh, id: 4 | Resent, thread: a, i: 0, n: 2, version: 1})
			h.took(turn{fh: fh, id: 6 | Resent, thread: b, i: 0, n: 2, version: 1})
			return h.took(turn{fh: fh, id: 8, thread: a, i: 1, n: 2, version: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := begin(t)
			fh, _ := h.Open(1, false, 2)
			if k := test(h, fh); k != 0 && k != -1 {
				t.Errorf("A's second part is of batch %d", k)
			}
		})
	}
}

// Threads that read a batch together, a part each, have that batch when all of them come again.
func TestPartsComeAgain(t *testing.T) {
	h := begin(t)
	fh, _ := h.Open(1, false, 2)
	for i := range int64(3) {
		h.took(turn{fh: fh, id: uint64(4 + 2*i), thread: uint64(i), i: i, n: 3, whole: true})
	}
	h = NewHandles(h.shared)
	for i := range int64(3) {
		if k := h.took(turn{fh: fh, id: uint64(4+2*i) | Resent, thread: uint64(i), i: i, n: 3, whole: true}); k != 0 {
			t.Errorf("part %d is of batch %d", i, k)
		}
	}
}

// A reader of y before x, under which the tokens change, has no pair of other tokens or of two batches.
func TestOtherTokensOutOfOrder(t *testing.T) {
	h := begin(t)
	fh, _ := h.Open(1, false, 2)
	id := uint64(2)
	read := func(i int64, version Version) int {
		id += 2
		return h.took(turn{fh: fh, id: id, i: i, n: 2, version: version, whole: true})
	}
	if y, x := read(1, 0), read(0, 0); y != 0 || x != 0 {
		t.Errorf("y of batch %d, x of batch %d", y, x)
	}
	if y, x := read(1, 0), read(0, 1); y != 1 || x != -1 {
		t.Errorf("y of batch %d, and x of other tokens of batch %d", y, x)
	}
	for k := range 4 { // y alone was delivered, so reading it again begins the batch again
		if y, x := read(1, 1), read(0, 1); y != k+1 || x != k+1 {
			t.Errorf("then y of batch %d, x of batch %d", y, x)
		}
	}

	// Where x is sent again, of other tokens.
	fh, _ = h.Open(1, false, 3)
	read(1, 0)
	read(0, 0)
	h = NewHandles(h.shared)
	if x := h.took(turn{fh: fh, id: id | Resent, i: 0, n: 2, version: 1, whole: true}); x != -1 {
		t.Errorf("y of the tokens that were, and x of others, of batch %d", x)
	}
}

// A number goes back once, although the request that failed comes again and fails again, and only while nobody had a part of it.
func TestFailsAgain(t *testing.T) {
	h := begin(t)
	fh, _ := h.Open(1, false, 2)
	h.took(turn{fh: fh, id: 4, i: 0, n: 2})
	h.fails(turn{fh: fh, id: 6, i: 1, n: 2})
	h = NewHandles(h.shared)
	h.fails(turn{fh: fh, id: 6 | Resent, i: 1, n: 2})
	if next := h.shared.Sequences[1].Next(); next != 1 {
		t.Errorf("the cursor is %d: batch 0, of which a part was delivered, went back", next)
	}
	if k := h.took(turn{fh: fh, id: 8, i: 1, n: 2}); k != 0 {
		t.Errorf("the rest is of batch %d", k)
	}

	// Two requests of a batch fail, it goes to another reader, and one of the two comes again.
	h = begin(t)
	fh, _ = h.Open(1, false, 2)
	first, second := turn{fh: fh, id: 4, thread: 1, i: 0, n: 2, whole: true}, turn{fh: fh, id: 6, thread: 2, i: 1, n: 2}
	_, added, _ := h.AssignBatch(first.read())
	h.fails(second)
	h.GiveBack(first.read(), 0, added)
	other, _ := h.Open(1, false, 8)
	taken := h.took(turn{fh: other, id: 10, thread: 3, i: 0, n: 1})
	h = NewHandles(h.shared)
	second.id |= Resent
	if k := h.took(second); k == taken {
		t.Errorf("batch %d went to two readers", k)
	}
}

// Looks at next that others overtake do not keep later ones from giving their numbers back.
func TestOvertakenLooks(t *testing.T) {
	h := begin(t)
	id := uint64(0)
	open := func(isTentative bool) uint64 {
		id += 2
		fh, _ := h.Open(1, isTentative, id)
		return fh
	}
	read := func(fh uint64, n int64) {
		id += 2
		h.read(fh, id, Span{0, n, 10}, 0)
	}
	for range 3 * maxAbandoned {
		before := h.shared.Sequences[1].Next()
		looks := []uint64{open(true), open(true), open(true)}
		for _, fh := range looks {
			read(fh, 5)
		}
		for _, fh := range looks {
			h.Release(fh)
		}
		if after := h.shared.Sequences[1].Next(); after != before {
			t.Fatalf("looks moved the cursor from %d to %d", before, after)
		}
		look, reader := open(true), open(false)
		read(look, 5)
		read(reader, 10)
		h.Release(reader)
		h.Release(look)
	}
}
