package state

import "testing"

// A step is an action of a reader of a file with 12 parts. The zero value reads the whole batch
// through handle 0, and expects batch 0.
type step struct {
	do       string // "fail", "roll back", "release", "seek", or "" to read
	fh       int    // handle; its first step opens it
	nonblock bool
	id       uint64 // request id; if an earlier step has it, the request is resent to a new worker
	thread   uint64
	from, to int64 // parts; to 0 means the end of the file
	version  Version
	cut      bool // see NextRead
	pastEnd  bool // see NextRead
	want     int  // batch number, failed or anyNumber
}

const (
	failed    = -1
	anyNumber = -2
)

// A stepRunner is a worker and the requests that it has received.
type stepRunner struct {
	h       *Handles
	handles map[int]uint64          // open handles by step.fh
	reads   map[uint64]inFlightRead // latest requests by step.id
	ids     uint64                  // last request id
}

func newStepRunner(t *testing.T) *stepRunner {
	return &stepRunner{h: newTestHandles(t), handles: map[int]uint64{}, reads: map[uint64]inFlightRead{}}
}

// run executes step i.
func (s *stepRunner) run(t *testing.T, i int, st step) {
	t.Helper()
	const part, size = 100, 1200
	sequence := &s.h.shared.Sequences[1]
	s.ids += 2
	fh, isOpen := s.handles[st.fh]
	if !isOpen && st.do != "seek" {
		fh, _ = s.h.Open(1, 0, st.nonblock, s.ids)
		s.handles[st.fh] = fh
		s.ids += 2
	}
	if st.to == 0 {
		st.to = size / part
	}
	r := NextRead{
		Batches: noEnd,
		ID:      s.ids, FH: fh, Thread: st.thread, Version: st.version, Cut: st.cut, PastEnd: st.pastEnd,
		FileRange: FileRange{st.from * part, (st.to - st.from) * part, size},
	}
	if st.id > 0 {
		r.ID = 1000 + st.id
		if _, ok := s.reads[st.id]; ok && st.do != "roll back" {
			s.h = NewHandles(s.h.shared)
			r.ID |= Resent
		}
	}
	switch st.do {
	case "seek":
		sequence.Seek(uint64(st.want))
	case "release":
		s.h.Release(fh)
		delete(s.handles, st.fh)
	case "roll back":
		rolledBack := s.reads[st.id]
		rolledBack.batch, rolledBack.added = uint64(st.want), true
		s.h.undoRead(rolledBack)
	case "", "fail":
		k, added, err := s.h.assignBatch(r)
		s.reads[st.id] = inFlightRead{r, k, s.h.slot(fh).assignedRequest.Load(), added}
		got := int(k)
		if err != nil {
			got = failed
		}
		if st.want != anyNumber && got != st.want {
			t.Errorf("step %d, %+v: number %d (%v)", i, st, got, err)
		}
		if st.do == "fail" {
			s.h.undoRead(s.reads[st.id])
		}
	default:
		t.Fatalf("step %d: %q", i, st.do)
	}
}

func TestNumbers(t *testing.T) {
	for name, test := range map[string]struct {
		steps []step
		times int // repetitions of all steps
		uses  int // batches read each time
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
		// numpy.fromfile reads the last block first to learn the size of a file.
		"C's stdio":              {[]step{{from: 8, thread: 7, pastEnd: true, want: anyNumber}, {to: 8, thread: 7}, {from: 8, thread: 7, pastEnd: true}}, 5, 1},
		"y before x":             {[]step{{from: 6}, {to: 6}}, 5, 1},
		"threads, the end first": {[]step{{from: 8, pastEnd: true, thread: 1}, {to: 8, thread: 2}}, 5, 1},
		// A pool of threads reads the parts of a file in order.
		"threads that read together": {[]step{{to: 4, thread: 1, cut: true}, {from: 4, to: 8, thread: 2, cut: true}, {from: 8, thread: 1}}, 5, 1},

		"a failed read is retried": {[]step{{do: "fail", id: 1}, {}, {id: 1, want: 1}}, 1, 0},
		// A batch that was delivered stays delivered if a repeated read fails, but not if the read
		// that completes it does.
		"the end fails": {[]step{
			{}, {do: "fail", from: 11}, {want: 1}, {fh: 2, to: 11, want: 2}, {do: "fail", fh: 2, from: 11, want: 2}, {fh: 2, want: 2},
		}, 1, 0},
		"a part fails twice, and others were delivered": {[]step{
			{to: 6, cut: true}, {do: "fail", id: 1, from: 6}, {do: "fail", id: 1, from: 6}, {fh: 2, want: 1}, {from: 6},
		}, 1, 0},
		"both parts fail, another handle takes the batch, one part is retried": {[]step{
			{id: 1, to: 6, thread: 1}, {do: "fail", id: 2, from: 6, thread: 2}, {do: "roll back", id: 1}, {fh: 2, thread: 3},
			{id: 2, from: 6, thread: 2, want: 1},
		}, 1, 0},

		"changed tokens": {[]step{
			{}, {to: 4, want: 1}, {from: 4, version: 1, want: failed}, {from: 4, want: 1}, {version: 1, want: 2}, {to: 4, version: 1, want: 3},
			{version: 2, want: 3}, {version: 2, want: 4}, {from: 11, version: 3, want: failed}, {version: 3, want: 5},
			{from: 11, version: 3, want: 5}, {to: 1, version: 3, want: 6}, {to: 1, version: 1 << 40, want: 6},
			{from: 1, version: 1 << 40, want: 6}, {version: 1 << 40, want: 7},
		}, 1, 0},
		"changed tokens for a resent request": {[]step{
			{id: 1}, {id: 2, want: 1}, {id: 1, version: 1}, {id: 2, version: 1, want: 1}, {version: 1, want: 2}, {version: 1, want: 3},
		}, 1, 0},
		"changed tokens between y and x": {[]step{
			// The reader must start again with y.
			{from: 6}, {to: 6}, {from: 6, want: 1}, {to: 6, version: 1, want: failed},
			{from: 6, version: 1, want: 1}, {to: 6, version: 1, want: 1}, {from: 6, version: 1, want: 2}, {to: 6, version: 1, want: 2},
			{fh: 2, from: 6, want: 3}, {fh: 2, id: 1, to: 6, want: 3}, {fh: 2, id: 1, to: 6, version: 1, want: failed},
		}, 1, 0},

		// Thread 1 is in the middle of batch 0 when thread 2 begins batch 1. Thread 1 gets
		// the rest of batch 0, or an error.
		"in the middle, its second part is resent": {[]step{
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
		"in the middle, changed tokens": {[]step{
			{to: 6, thread: 1, cut: true}, {to: 6, thread: 2, cut: true, version: 1, want: 1}, {from: 6, thread: 1, version: 1, want: failed},
			{from: 6, thread: 1, version: 1, want: failed},
		}, 1, 0},
		"in the middle, both are resent, changed tokens": {[]step{
			{id: 1, to: 6, thread: 1, cut: true}, {id: 2, to: 6, thread: 2, cut: true, want: 1}, {id: 1, to: 6, thread: 1, cut: true, version: 1},
			{id: 2, to: 6, thread: 2, cut: true, version: 1, want: 1}, {from: 6, thread: 1, version: 1},
		}, 1, 0},
		"threads that read together, and all requests are resent": {[]step{
			{id: 1, to: 4, thread: 1}, {id: 2, from: 4, to: 8, thread: 2}, {id: 3, from: 8, thread: 3},
			{id: 1, to: 4, thread: 1}, {id: 2, from: 4, to: 8, thread: 2}, {id: 3, from: 8, thread: 3},
		}, 1, 0},
		// The number is returned once all have failed, even if each was resent after another.
		"resent reads of threads fail": {[]step{
			{id: 1, to: 4, thread: 1}, {id: 2, from: 4, to: 8, thread: 2}, {id: 1, to: 4, thread: 1}, {id: 2, from: 4, to: 8, thread: 2},
			{do: "roll back", id: 1}, {do: "roll back", id: 2}, {fh: 2},
		}, 1, 0},

		"a seek": {[]step{
			{}, {fh: 2, to: 6, want: 1}, {do: "seek", want: 100}, {do: "seek", want: 50}, {fh: 2, from: 6, want: 1}, {want: 50}, {want: 51},
			{do: "seek"}, {},
		}, 1, 0},
		// A number returned after a seek does not undo the seek.
		"returned after a seek": {[]step{
			{fh: 2, nonblock: true, to: 6}, {id: 1, want: 1}, {fh: 3, nonblock: true, to: 6, want: 2}, {do: "release", fh: 2}, {do: "seek", want: 1},
			{fh: 4, want: 1}, {do: "roll back", id: 1, want: 1}, {fh: 4, want: 2}, {do: "release", fh: 3}, {fh: 4, want: 3},
			{do: "seek", want: 1}, {fh: 5, nonblock: true, to: 6, want: 1}, {do: "release", fh: 5}, {fh: 4, want: 1},
		}, 1, 0},
		"returned out of order": {[]step{
			{fh: 2, nonblock: true, to: 6}, {fh: 3, nonblock: true, to: 6, want: 1}, {do: "release", fh: 2}, {do: "release", fh: 3}, {want: 1},
		}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStepRunner(t)
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

// If there is no room for another unfinishedRead, a read that would interrupt another thread fails.
// All other threads get the rest of their batches.
func TestTooManyUnfinishedReads(t *testing.T) {
	s := newStepRunner(t)
	const last = maxUnfinished + 1
	for i := range last {
		s.run(t, i, step{to: 6, cut: true, thread: uint64(i), want: i})
	}
	if _, _, err := s.h.assignBatch(NextRead{Batches: noEnd, ID: 1 << 20, FH: s.handles[0], Thread: last, FileRange: FileRange{0, 1200, 1200}}); err != ErrShared {
		t.Error(err)
	}
	for i := range last {
		s.run(t, i, step{from: 6, thread: uint64(i), want: i})
	}
	s.run(t, last, step{thread: last, want: last})
}
