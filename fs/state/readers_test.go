package state

import (
	"testing"
	"time"
)

// A reader that opens next again continues with its counters; a new reader starts at 0.
func TestReadersKeepTheirCounters(t *testing.T) {
	h := newTestHandles(t)
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
	first, _ := h.Open(1, 7, false, 1)
	second := read(8)
	h.Release(first)
	waited := second.Waited.Load()
	if again := read(7); again == second {
		t.Error("two threads share a ReaderStats")
	}
	if again := read(8); again != second || again.Waited.Load() <= waited || again.Gap.Load() == 0 {
		t.Errorf("thread 8 read again: waited %d ns, then %d, gap %d", waited, again.Waited.Load(), again.Gap.Load())
	}
	if fresh := read(9); fresh.Waited.Load() > waited+second.Waited.Load() || fresh.Gap.Load() != 0 {
		t.Error("thread 9 began with the counters of another")
	}
}

// A user can forge the number of slots in the memory of a mount, which root may inspect.
func TestForgedSlots(t *testing.T) {
	shared := newTestHandles(t).shared
	shared.slotsUsed.Store(1 << 40)
	if n := len(shared.Readers()); n > MaxHandles {
		t.Errorf("%d readers", n)
	}
}

// A request that fails after it has timed out does not end the wait for a later one.
func TestLateFailure(t *testing.T) {
	shared := newTestHandles(t).shared
	fh, _ := NewHandles(shared).Open(1, 7, false, 2)
	late := shared.BeginRead(1, fh, 7, 4, time.Hour)
	shared.BeginRead(1, fh, 7, 6, time.Minute)
	late.Discard()
	if waits, d := shared.Readers()[fh%MaxHandles].Since(); !waits || d < time.Minute {
		t.Errorf("waits %v, for %v", waits, d)
	}
}

// A wait during which the worker ends counts from its beginning, unless it is a reader's first.
func TestWaitsOutliveWorkers(t *testing.T) {
	shared := newTestHandles(t).shared
	fh, _ := NewHandles(shared).Open(1, 7, false, 2)
	r, w := &shared.readers[fh%MaxHandles], &shared.Sequences[1].ReplyTimes
	read := func(id uint64) (waited time.Duration) {
		t.Helper()
		before := w.Sum.Load()
		shared.BeginRead(1, fh, 7, id, time.Minute)
		if waits, d := r.Since(); !waits || d < time.Minute {
			t.Errorf("waits %v, for %v", waits, d)
		}
		for range 2 { // the next worker ends, too
			shared.BeginRead(1, fh, 7, id|Resent, 0)
		}
		shared.BeginRead(1, fh, 7, id|Resent, 0).End()
		return time.Duration(w.Sum.Load() - before)
	}
	first := read(4)
	if waited := r.Waited.Load(); first < time.Minute || waited != 0 {
		t.Errorf("the first request waited %v, of which %d ns are counted", first, waited)
	}
	second := read(6)
	if waited := time.Duration(r.Waited.Load()); second < time.Minute || waited != second || int64(waited) != shared.Sequences[1].Waited.Load() {
		t.Errorf("the second request waited %v, of which %v are counted", second, waited)
	}
	if over := w.Buckets[len(WaitBounds)].Load(); over != 2 {
		t.Errorf("%d waits above all bounds, want 2", over)
	}
	for i, bound := range WaitBounds {
		w.record(bound - 1)
		w.record(bound)
		if below, from := w.Buckets[i].Load(), w.Buckets[i+1].Load(); below == 0 || from == 0 {
			t.Errorf("bound %v separates nothing", bound)
		}
	}
}
