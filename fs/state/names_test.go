package state

import (
	"fmt"
	"slices"
	"testing"
)

// The last names are there for a successor, oldest first.
func TestNamesAreKept(t *testing.T) {
	s := begin(t).shared
	var want []Name
	for i := range maxNames + 100 {
		n := Name{Dir: uint64(i), Name: fmt.Sprint("seed=", i)}
		s.NoteName(n)
		want = append(want, n)
	}
	want = want[len(want)-maxNames+1:]
	if got := s.Names(); !slices.Equal(got, want) {
		t.Errorf("%d names, want %d: from %v, want from %v", len(got), len(want), got[0], want[0])
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
			s.EndAttempts(other | Resent)
			if s.Exhausted(other | Resent) {
				t.Fatalf("worker %d: request %d is exhausted", worker, other)
			}
		}
		if got, want := s.Exhausted(id), (worker+1)/2 >= MaxAttempts; got != want {
			t.Errorf("worker %d: exhausted: %v, want %v", worker, got, want)
		}
	}
	s.EndAttempts(id)
	if s.Exhausted(id) || s.Exhausted(2) {
		t.Error("exhausted after it was answered")
	}
}
