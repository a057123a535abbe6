package top

import (
	"time"

	"batchfs/fs/state"
)

// A frame is all mounts at a time.
type frame struct {
	at     time.Time
	mounts []*Mount
}

// Rates are what happened to a sequence since an earlier look.
type Rates struct {
	Batches    float64  `json:"batches_per_second"`
	Bytes      float64  `json:"bytes_per_second"`
	Ready      *float64 `json:"ready_share"`              // of reads; nil: there were none
	WaitMedian *float64 `json:"next_wait_median_seconds"` // nil: next was not read
	WaitP99    *float64 `json:"next_wait_p99_seconds"`
	Waited     *float64 `json:"waited_share"` // of the reader of next that waited most; nil: not visible
}

// rate compares all sequences with what they were in an earlier frame.
func (f *frame) rate(then *frame) {
	earlier := map[string]*SequenceStats{}
	for _, m := range then.mounts {
		for _, s := range m.Sequences {
			earlier[m.Mountpoint+"\x00"+s.Name] = s
		}
	}
	for _, m := range f.mounts {
		for _, s := range m.Sequences {
			if was := earlier[m.Mountpoint+"\x00"+s.Name]; was != nil && was.Reads <= s.Reads {
				s.Rates = s.since(was, f.at.Sub(then.at).Seconds())
			}
		}
	}
}

func (s *SequenceStats) since(was *SequenceStats, seconds float64) *Rates {
	r := &Rates{Batches: float64(s.Batches-was.Batches) / seconds, Bytes: float64(s.Bytes-was.Bytes) / seconds}
	if reads := s.Reads - was.Reads; reads > 0 {
		r.Ready = fraction(float64(s.Ready-was.Ready), float64(reads))
	}
	waits := s.waits
	for i := range waits {
		waits[i] -= was.waits[i]
	}
	r.WaitMedian, r.WaitP99 = quantile(waits[:], 0.5), quantile(waits[:], 0.99)
	for _, reader := range s.Readers {
		for _, before := range was.Readers {
			if before.PID == reader.PID {
				waited, gap := max(reader.Waited-before.Waited, 0), max(reader.Gap-before.Gap, 0)
				reader.WaitedFraction = fraction(waited, waited+gap)
			}
		}
		if w := reader.WaitedFraction; w != nil && (r.Waited == nil || *w > *r.Waited) {
			r.Waited = w
		}
	}
	return r
}

func fraction(part, of float64) *float64 {
	if of <= 0 {
		return nil
	}
	s := part / of
	return &s
}

// quantile is in seconds, to within a factor of two.
func quantile(waits []uint64, q float64) *float64 {
	total := uint64(0)
	for _, n := range waits {
		total += n
	}
	if total == 0 {
		return nil
	}
	below, wanted := 0.0, q*float64(total)
	low, high := 0.0, 0.0
	for i, n := range waits {
		low, high = high, state.WaitBounds[min(i, len(state.WaitBounds)-1)].Seconds()
		if here := float64(n); below+here >= wanted && here > 0 {
			at := low + (high-low)*(wanted-below)/here
			return &at
		}
		below += float64(n)
	}
	return &high
}
