package state

import (
	"fmt"
	"testing"
)

func TestNames(t *testing.T) {
	s := newTestHandles(t).shared
	var want []Name
	for i := range maxNames + 100 {
		n := Name{Dir: uint64(i), Name: fmt.Sprint("seed=", i)}
		s.RecordName(n)
		want = append(want, n)
	}
	for from := range s.NamesRecorded() {
		first := max(from, 101)
		if i, got := s.NameFrom(from); i != first || got != want[first] {
			t.Errorf("from %d: name %d, %v, want name %d, %v", from, i, got, first, want[first])
		}
	}
}

// A resent request is exhausted once MaxResentCrashes workers have crashed since it was first
// resent, whatever other requests were resent. Workers that were killed do not count.
func TestRequestIsExhausted(t *testing.T) {
	s := newTestHandles(t).shared
	const id = 2 | Resent
	for worker := range 3 * MaxResentCrashes {
		if worker%2 > 0 {
			s.Crashes.Add(1)
		}
		for other := uint64(4); other < 2*maxResentRequests; other += 2 {
			s.EndAttempt(other | Resent)
			if s.BeginAttempt(other | Resent) {
				t.Fatalf("worker %d: request %d is exhausted", worker, other)
			}
		}
		if got, want := s.BeginAttempt(id), (worker+1)/2 >= MaxResentCrashes; got != want {
			t.Errorf("worker %d: exhausted: %v, want %v", worker, got, want)
		}
	}
	s.EndAttempt(id)
	if s.BeginAttempt(id) || s.BeginAttempt(2) {
		t.Error("exhausted after its reply")
	}
}
