package state

import "testing"

// A step is what a reader of a batch of 12 parts does, and the number that it gets: with steps of the zero value it reads the whole
// batch on the first handle.
type step struct {
	do       string // a key of steps.do; "": read
	fh       int    // which handle; it is opened at its first step
	looks    bool   // it is opened with O_NONBLOCK
	id       uint64 // of the request, where another step has the same: then that one is sent again, to another worker
	thread   uint64
	from, to int64 // parts; to = 0 is the end
	version  Version
	cut      bool // see Read
	pastEnd  bool
	want     int // the number, or one of:
}

const (
	failed    = -1 // an error
	anyNumber = -2
)

// steps runs steps on the handles of a mount with one sequence.
type steps struct {
	h       *Handles
	handles map[int]uint64
	reads   map[uint64]ReadRequest // requests by id
	ids     uint64
}

func newSteps(t *testing.T) *steps {
	return &steps{h: begin(t), handles: map[int]uint64{}, reads: map[uint64]ReadRequest{}}
}

func (s *steps) run(t *testing.T, i int, st step) {
	t.Helper()
	const part, size = 100, 1200
	e := &s.h.shared.Sequences[1]
	s.ids += 2
	fh, isOpen := s.handles[st.fh]
	if !isOpen && st.do != "seek" {
		fh, _ = s.h.Open(1, 0, st.looks, s.ids)
		s.handles[st.fh] = fh
		s.ids += 2
	}
	if st.to == 0 {
		st.to = size / part
	}
	r := ReadRequest{
		ID: s.ids, FH: fh, Thread: st.thread, Version: st.version, Cut: st.cut, PastEnd: st.pastEnd,
		Span: Span{st.from * part, (st.to - st.from) * part, size},
	}
	if st.id > 0 {
		r.ID = 1000 + st.id
		if _, ok := s.reads[st.id]; ok && st.do != "give back" {
			s.h = NewHandles(s.h.shared)
			r.ID |= Resent
		}
	}
	switch st.do {
	case "seek":
		e.Seek(uint64(st.want))
	case "release":
		s.h.Release(fh)
		delete(s.handles, st.fh)
	case "give back":
		s.h.undoRead(inFlightRead{s.reads[st.id], uint64(st.want), true})
	case "", "fail":
		s.reads[st.id] = r
		k, added, err := s.h.assignBatch(r)
		got := int(k)
		if err != nil {
			got = failed
		}
		if st.want != anyNumber && got != st.want {
			t.Errorf("step %d, %+v: number %d (%v)", i, st, got, err)
		}
		if st.do == "fail" {
			s.h.undoRead(inFlightRead{r, k, added})
		}
	default:
		t.Fatalf("step %d: %q", i, st.do)
	}
}

// Which batch a read has, whatever was read before, by whom, and of which tokens.
func TestNumbers(t *testing.T) {
	for name, test := range map[string]struct {
		steps []step
		times int
		uses  int // the numbers are so much higher each time
	}{
		"a batch a read":     {[]step{{}}, 5, 1},
		"backwards":          {[]step{{from: 8}, {from: 4, to: 8}, {to: 4}}, 5, 1},
		"each part twice":    {[]step{{to: 4}, {to: 4}, {from: 4, to: 8}, {from: 4, to: 8}, {from: 8}, {from: 8}}, 5, 1},
		"parts that overlap": {[]step{{from: 3, to: 9}, {to: 5}, {to: 5}, {from: 11}, {from: 8, to: 11}}, 5, 1},
		"the end twice":      {[]step{{from: 11}, {from: 11}, {to: 1}, {from: 1, to: 11}}, 5, 1},

		"the last request again, and not from the beginning": {[]step{
			{to: 8}, {from: 8}, {from: 8}, {from: 9, to: 10}, {from: 7, to: 8, want: 1},
			{want: 1}, {from: 6, want: 1}, {from: 4, want: 1}, {want: 2}, {to: 6, want: 3}, {from: 6, want: 3}, {from: 4, want: 4},
		}, 1, 0},
		// numpy.fromfile learns the size of a file by reading its last block.
		"C's stdio":              {[]step{{from: 8, thread: 7, pastEnd: true, want: anyNumber}, {to: 8, thread: 7}, {from: 8, thread: 7, pastEnd: true}}, 5, 1},
		"y before x":             {[]step{{from: 6}, {to: 6}}, 5, 1},
		"threads, the end first": {[]step{{from: 8, pastEnd: true, thread: 1}, {to: 8, thread: 2}}, 5, 1},
		// As a pool of threads reads a file, the parts one after the other.
		"threads that read together": {[]step{{to: 4, thread: 1, cut: true}, {from: 4, to: 8, thread: 2, cut: true}, {from: 8, thread: 1}}, 5, 1},

		"a read that failed comes again": {[]step{{do: "fail", id: 1}, {}, {id: 1, want: 1}}, 1, 0},
		// A batch that was delivered whole stays so, and one without its end does not.
		"the end fails": {[]step{
			{}, {do: "fail", from: 11}, {want: 1}, {fh: 2, to: 11, want: 2}, {do: "fail", fh: 2, from: 11, want: 2}, {fh: 2, want: 2},
		}, 1, 0},
		"a part fails twice, and others were delivered": {[]step{
			{to: 6, cut: true}, {do: "fail", id: 1, from: 6}, {do: "fail", id: 1, from: 6}, {fh: 2, want: 1}, {from: 6},
		}, 1, 0},
		"both parts fail, another has the batch, and one comes again": {[]step{
			{id: 1, to: 6, thread: 1}, {do: "fail", id: 2, from: 6, thread: 2}, {do: "give back", id: 1}, {fh: 2, thread: 3},
			{id: 2, from: 6, thread: 2, want: 1},
		}, 1, 0},

		"other tokens": {[]step{
			{}, {to: 4, want: 1}, {from: 4, version: 1, want: failed}, {from: 4, want: 1}, {version: 1, want: 2}, {to: 4, version: 1, want: 3},
			{version: 2, want: 3}, {version: 2, want: 4}, {from: 11, version: 3, want: failed}, {version: 3, want: 5},
			{from: 11, version: 3, want: 5}, {to: 1, version: 3, want: 6}, {to: 1, version: 1 << 40, want: 6},
			{from: 1, version: 1 << 40, want: 6}, {version: 1 << 40, want: 7},
		}, 1, 0},
		"other tokens when it comes again": {[]step{
			{id: 1}, {id: 2, want: 1}, {id: 1, version: 1}, {id: 2, version: 1, want: 1}, {version: 1, want: 2}, {version: 1, want: 3},
		}, 1, 0},
		"other tokens between y and x": {[]step{
			{from: 6}, {to: 6}, {from: 6, want: 1}, {to: 6, version: 1, want: failed}, // y alone was delivered, so it begins the batch again
			{from: 6, version: 1, want: 1}, {to: 6, version: 1, want: 1}, {from: 6, version: 1, want: 2}, {to: 6, version: 1, want: 2},
			{fh: 2, from: 6, want: 3}, {fh: 2, id: 1, to: 6, want: 3}, {fh: 2, id: 1, to: 6, version: 1, want: failed},
		}, 1, 0},

		// Thread 1 is in the middle of batch 0 when thread 2 begins batch 1. It gets the rest of batch 0, or an error.
		"in the middle, its second part comes again": {[]step{
			{to: 4, thread: 1, cut: true}, {id: 1, from: 4, to: 8, thread: 1, cut: true}, {to: 4, thread: 2, cut: true, want: 1},
			{id: 1, from: 4, to: 8, thread: 1, cut: true},
		}, 1, 0},
		"in the middle, its second part fails": {[]step{
			{to: 6, thread: 1, cut: true}, {to: 6, thread: 2, cut: true, want: 1}, {do: "fail", from: 6, thread: 1}, {from: 6, thread: 1},
		}, 1, 0},
		"in the middle, its second part failed before": {[]step{
			{to: 6, thread: 1, cut: true}, {do: "fail", from: 6, thread: 1}, {to: 6, thread: 2, cut: true, want: 1}, {from: 6, thread: 2, want: 1},
			{from: 6, thread: 1},
		}, 1, 0},
		"in the middle, other tokens": {[]step{
			{to: 6, thread: 1, cut: true}, {to: 6, thread: 2, cut: true, version: 1, want: 1}, {from: 6, thread: 1, version: 1, want: failed},
			{from: 6, thread: 1, version: 1, want: failed},
		}, 1, 0},
		"in the middle, both come again, of other tokens": {[]step{
			{id: 1, to: 6, thread: 1, cut: true}, {id: 2, to: 6, thread: 2, cut: true, want: 1}, {id: 1, to: 6, thread: 1, cut: true, version: 1},
			{id: 2, to: 6, thread: 2, cut: true, version: 1, want: 1}, {from: 6, thread: 1, version: 1},
		}, 1, 0},
		"threads that read together, and all come again": {[]step{
			{id: 1, to: 4, thread: 1}, {id: 2, from: 4, to: 8, thread: 2}, {id: 3, from: 8, thread: 3},
			{id: 1, to: 4, thread: 1}, {id: 2, from: 4, to: 8, thread: 2}, {id: 3, from: 8, thread: 3},
		}, 1, 0},

		"a seek": {[]step{
			{}, {fh: 2, to: 6, want: 1}, {do: "seek", want: 100}, {do: "seek", want: 50}, {fh: 2, from: 6, want: 1}, {want: 50}, {want: 51},
			{do: "seek"}, {},
		}, 1, 0},
		// A batch that is given back after a seek does not undo it.
		"given back after a seek": {[]step{
			{fh: 2, looks: true, to: 6}, {id: 1, want: 1}, {fh: 3, looks: true, to: 6, want: 2}, {do: "release", fh: 2}, {do: "seek", want: 1},
			{fh: 4, want: 1}, {do: "give back", id: 1, want: 1}, {fh: 4, want: 2}, {do: "release", fh: 3}, {fh: 4, want: 3},
			{do: "seek", want: 1}, {fh: 5, looks: true, to: 6, want: 1}, {do: "release", fh: 5}, {fh: 4, want: 1},
		}, 1, 0},
		"an overtaken look": {[]step{
			{fh: 2, looks: true, to: 6}, {fh: 3, looks: true, to: 6, want: 1}, {do: "release", fh: 2}, {do: "release", fh: 3}, {want: 1},
		}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSteps(t)
			for again := range test.times {
				for i, st := range test.steps {
					if st.want >= 0 {
						st.want += again * test.uses
					}
					s.run(t, again*len(test.steps)+i, st)
				}
			}
		})
	}
}

// If there is no room to set a read(2) aside, the thread that would interrupt it gets an error, and
// never bytes of another thread's batch. All others get the rest of their own batches.
func TestTooManyUnfinishedReads(t *testing.T) {
	s := newSteps(t)
	const last = maxUnfinished + 1
	for i := range last {
		s.run(t, i, step{to: 6, cut: true, thread: uint64(i), want: i})
	}
	if _, _, err := s.h.assignBatch(ReadRequest{ID: 1 << 20, FH: s.handles[0], Thread: last, Span: Span{0, 1200, 1200}}); err != ErrShared {
		t.Error(err)
	}
	for i := range last {
		s.run(t, i, step{from: 6, thread: uint64(i), want: i})
	}
	s.run(t, last, step{thread: last, want: last})
}
