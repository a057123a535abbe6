package figures

import (
	"time"

	"batchfs/fs/state"
)

// A Frame holds the figures of several mounts at one moment.
type Frame struct {
	Time   time.Time
	Mounts []*Mount
}

// Rates holds the rates of a sequence since an earlier poll. Fractions are from 0 to 1. A Rates
// belongs to one goroutine.
type Rates struct {
	Batches        float64  `json:"batches_per_second"`
	Bytes          float64  `json:"bytes_per_second"`
	ReadyFraction  *float64 `json:"ready_fraction"`           // nil without reads
	WaitMedian     *float64 `json:"next_wait_median_seconds"` // nil if next was not read
	WaitP99        *float64 `json:"next_wait_p99_seconds"`
	WaitedFraction *float64 `json:"waited_fraction"` // the largest among readers of next
}

// StoreRates holds the rates of the stores of a mount since an earlier poll.
type StoreRates struct {
	Fetched  float64 `json:"fetched_bytes_per_second"`
	Requests float64 `json:"requests_per_second"`
	Errors   float64 `json:"errors_per_second"`
}

// ComputeRates sets the rates of the stores and sequences that an earlier frame has, too.
func (f *Frame) ComputeRates(earlier *Frame) {
	seconds := f.Time.Sub(earlier.Time).Seconds()
	old, oldStores := map[string]*Sequence{}, map[string]*Store{}
	for _, m := range earlier.Mounts {
		oldStores[m.Mountpoint] = &m.Store
		for _, s := range m.Sequences {
			old[m.Mountpoint+"\x00"+s.Name] = s
		}
	}
	for _, m := range f.Mounts {
		if s, old := &m.Store, oldStores[m.Mountpoint]; old != nil && old.Requests <= s.Requests {
			s.Rates = &StoreRates{float64(s.Fetched-old.Fetched) / seconds, float64(s.Requests-old.Requests) / seconds, float64(s.Errors-old.Errors) / seconds}
		}
		for _, s := range m.Sequences {
			old := old[m.Mountpoint+"\x00"+s.Name]
			if old != nil && old.Reads <= s.Reads && old.Batches <= s.Batches && old.Bytes <= s.Bytes {
				s.Rates = s.ratesSince(old, seconds)
			}
		}
	}
}

// ratesSince returns the rates since old, which is seconds older than s. It also sets the
// WaitedFraction of the readers.
func (s *Sequence) ratesSince(old *Sequence, seconds float64) *Rates {
	r := &Rates{Batches: float64(s.Batches-old.Batches) / seconds, Bytes: float64(s.Bytes-old.Bytes) / seconds}
	if reads := s.Reads - old.Reads; reads > 0 {
		r.ReadyFraction = Fraction(float64(s.Ready-old.Ready), float64(reads))
	}
	waits := s.Waits
	for i := range waits {
		waits[i] -= old.Waits[i]
	}
	r.WaitMedian, r.WaitP99 = quantile(waits[:], 0.5), quantile(waits[:], 0.99)
	for _, reader := range s.Readers {
		for _, oldReader := range old.Readers {
			if oldReader.PID == reader.PID {
				waited, gap := max(reader.Waited-oldReader.Waited, 0), max(reader.Gap-oldReader.Gap, 0)
				reader.WaitedFraction = Fraction(waited, waited+gap)
			}
		}
		if w := reader.WaitedFraction; w != nil && (r.WaitedFraction == nil || *w > *r.WaitedFraction) {
			r.WaitedFraction = w
		}
	}
	return r
}

// Fraction returns part/whole, or nil if whole is 0.
func Fraction(part, whole float64) *float64 {
	if whole <= 0 {
		return nil
	}
	f := part / whole
	return &f
}

// quantile returns the q-quantile of a histogram with the bounds state.WaitBounds, in seconds. It
// is exact to within a factor of two, and nil if the histogram is empty.
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
		if count := float64(n); below+count >= wanted && count > 0 {
			value := low + (high-low)*(wanted-below)/count
			return &value
		}
		below += float64(n)
	}
	return &high
}
