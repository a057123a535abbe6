package state

import (
	"testing"
	"time"
)

// A reader keeps its counters when it opens next again, whoever else does meanwhile, and a new reader begins with none.
func TestReadersKeepTheirCounters(t *testing.T) {
	h := begin(t)
	shared, id := h.shared, uint64(0)
	read := func(thread uint32) *ReaderStats {
		id += 2
		fh, ok := h.Open(1, thread, false, id)
		if !ok {
			t.Fatal("no handle")
		}
		shared.BeginRead(1, fh, thread, id, 0).End()
		h.Release(fh)
		return &shared.readers[fh%MaxHandles]
	}
	first, _ := h.Open(1, 7, false, 1) // so that two slots are used
	second := read(8)
	h.Release(first)
	waited := second.Waited.Load()
	if again := read(7); again == second {
		t.Error("two threads have one reader")
	}
	if again := read(8); again != second || again.Waited.Load() <= waited || again.Gap.Load() == 0 {
		t.Errorf("thread 8 read again: waited %d ns, then %d, gap %d", waited, again.Waited.Load(), again.Gap.Load())
	}
	if fresh := read(9); fresh.Waited.Load() > waited+second.Waited.Load() || fresh.Gap.Load() != 0 {
		t.Errorf("thread 9 began with the counters of another")
	}
}

// A request waits from the time when it began until it is answered, also if it is sent again.
func TestWaitsOutliveWorkers(t *testing.T) {
	shared := begin(t).shared
	fh, _ := NewHandles(shared).Open(1, 7, false, 2)
	shared.BeginRead(1, fh, 7, 4, time.Minute)
	r := &shared.Readers()[fh%MaxHandles]
	if waits, d := r.Since(); !waits || d < time.Minute {
		t.Errorf("waits %v, for %v", waits, d)
	}
	shared.BeginRead(1, fh, 7, 4|Resent, 0).End()
	if d := time.Duration(r.Waited.Load()); d < time.Minute {
		t.Errorf("waited %v, want a minute", d)
	}
	w := &shared.Sequences[1].Waits
	if over := w.Buckets[len(WaitBounds)].Load(); over != 1 || w.Sum.Load() != r.Waited.Load() {
		t.Errorf("%d waits are over all bounds, want 1; %d ns in all", over, w.Sum.Load())
	}
	for i, bound := range WaitBounds {
		w.record(bound - 1)
		w.record(bound)
		if below, from := w.Buckets[i].Load(), w.Buckets[i+1].Load(); below == 0 || from == 0 {
			t.Errorf("bound %v parts nothing", bound)
		}
	}
}
