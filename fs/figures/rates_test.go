package figures

import (
	"math"
	"testing"
	"time"

	"batchfs/fs/state"
)

// Rates cover the time between two frames. A sequence or store that started over has none.
func TestRates(t *testing.T) {
	poll := func(second int) *Frame {
		n := uint64(second)
		s := &Sequence{Name: "train", Batches: 50 * n, Bytes: 1e6 * n, Reads: 50 * n, Ready: 25 * n}
		s.Waits[5] = 49 * n // from 32 to 64 µs
		s.Waits[15] = n
		for pid, waited := range []float64{0.25, 0.125} {
			s.Readers = append(s.Readers, &Reader{PID: pid, Waited: waited * float64(n), Gap: (1 - waited) * float64(n)})
		}
		anew := &Sequence{Name: "val", Reads: 10 - n}
		return &Frame{time.Unix(int64(second), 0), []*Mount{
			{Mountpoint: "/a", Store: Store{Fetched: 5e6 * int64(second), Requests: 3 * int64(second)}, Sequences: []*Sequence{s, anew}},
			{Mountpoint: "/b", Store: Store{Requests: 10 - int64(second)}},
		}}
	}
	f := poll(2)
	f.ComputeRates(poll(1))
	r := f.Mounts[0].Sequences[0].Rates
	if r.Batches != 50 || r.Bytes != 1e6 || *r.ReadyFraction != 0.5 || math.Abs(*r.WaitedFraction-0.25) > 1e-9 {
		t.Errorf("%+v", r)
	}
	if m, p := *r.WaitMedian, *r.WaitP99; m < 32e-6 || m > 64e-6 || p < m || p > state.WaitBounds[15].Seconds() {
		t.Errorf("median %v, p99 %v", m, p)
	}
	if r := f.Mounts[0].Store.Rates; r == nil || r.Fetched != 5e6 || r.Requests != 3 {
		t.Errorf("store: %+v", r)
	}
	if f.Mounts[0].Sequences[1].Rates != nil || f.Mounts[1].Store.Rates != nil {
		t.Error("counters that have become smaller have rates")
	}
	if quantile(make([]uint64, 22), 0.5) != nil {
		t.Error("an empty histogram has a median")
	}
}

// A sequence that started over may have been read more often than before, but from fewer batches.
func TestRatesOfASequenceThatStartedOver(t *testing.T) {
	frame := func(second int64, s *Sequence) *Frame {
		return &Frame{time.Unix(second, 0), []*Mount{{Mountpoint: "/a", Sequences: []*Sequence{s}}}}
	}
	for what, anew := range map[string]*Sequence{
		"bytes":   {Name: "train/seed=1", Reads: 9, Batches: 4, Bytes: 7},
		"batches": {Name: "train/seed=1", Reads: 9, Batches: 3, Bytes: 8},
	} {
		f := frame(2, anew)
		f.ComputeRates(frame(1, &Sequence{Name: "train/seed=1", Reads: 8, Batches: 4, Bytes: 8}))
		if r := anew.Rates; r != nil {
			t.Errorf("fewer %s: %+v", what, r)
		}
	}
}
