package state

import (
	"fmt"
	"testing"
)

// The last names are there for a successor, oldest first.
func TestNamesAreKept(t *testing.T) {
	s := begin(t).shared
	var want []Name
	for i := range maxNames + 100 {
		n := Name{Dir: uint64(i), Name: fmt.Sprint("seed=", i)}
		s.RecordName(n)
		want = append(want, n)
	}
	for from := range s.NamesRecorded() {
		first := max(from, 101)
		if i, got := s.NameFrom(from); i != first || got != want[first] {
			t.Errorf("from %d on: name %d, %v, want name %d, %v", from, i, got, first, want[first])
		}
	}
}

// A request that was sent again is exhausted when MaxAttempts workers have ended by themselves since, whatever others are sent again.
// Workers that were killed do not count.
func TestExhausted(t *testing.T) {
	s := begin(t).shared
	const id = 2 | Resent
	for worker := range 3 * MaxAttempts {
		if worker%2 > 0 {
			s.Crashes.Add(1)
		}
		for other := uint64(4); other < 2*maxAttempts; other += 2 {
			s.EndAttempt(other | Resent)
			if s.BeginAttempt(other | Resent) {
				t.Fatalf("worker %d: request %d is exhausted", worker, other)
			}
		}
		if got, want := s.BeginAttempt(id), (worker+1)/2 >= MaxAttempts; got != want {
			t.Errorf("worker %d: exhausted: %v, want %v", worker, got, want)
		}
	}
	s.EndAttempt(id)
	if s.BeginAttempt(id) || s.BeginAttempt(2) {
		t.Error("exhausted after it was answered")
	}
}
