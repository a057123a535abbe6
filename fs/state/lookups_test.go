package state

import (
	"fmt"
	"slices"
	"testing"
)

// A worker that dies between any two steps of counting a lookup is replaced by one that is sent the request again: each lookup
// counts once.
func TestLookupsCountOnce(t *testing.T) {
	const lookups = 4
	count := func(h *Handles, point string, n int) {
		dead := false
		for id := uint64(2); id <= 2*lookups; id += 2 {
			if !dead {
				if dead = cutAt(point, n, func() { h.shared.CountLookup(1, id) }); !dead {
					continue
				}
				h.shared.ResumeLookups()
				h.shared.CountLookup(1, id|Resent)
				continue
			}
			h.shared.CountLookup(1, id)
		}
	}
	all := points(func() { begin(t).shared.CountLookup(1, 2) })
	if len(all) < 4 {
		t.Fatalf("only %d points: %s", len(all), all)
	}
	for _, point := range all {
		for n := 1; n <= lookups; n++ {
			t.Run(fmt.Sprint(point, " ", n), func(t *testing.T) {
				h := begin(t)
				count(h, point, n)
				if got := h.shared.Lookups(1); got != lookups {
					t.Errorf("%d lookups are counted, want %d", got, lookups)
				}
				if left := h.shared.ForgetLookups(1, lookups); left != 0 {
					t.Errorf("%d are left when all are forgotten", left)
				}
			})
		}
	}
}

// The names that were not forgotten yet are there for a successor, oldest first.
func TestNamesAreKept(t *testing.T) {
	s := begin(t).shared
	var want []Name
	for i := range maxNames + 100 {
		n := Name{Dir: uint64(i), Name: fmt.Sprint("seed=", i)}
		s.NoteName(n)
		want = append(want, n)
	}
	want = want[len(want)-maxNames+1:]
	if got := s.Names(0); !slices.Equal(got, want) {
		t.Errorf("%d names, want %d: from %v, want from %v", len(got), len(want), got[0], want[0])
	}
	s.ForgetNames(maxNames + 90)
	if got := s.Names(0); !slices.Equal(got, want[len(want)-10:]) {
		t.Errorf("the last 10 are %v", got)
	}
	if got := s.Names(5); !slices.Equal(got, want[len(want)-15:]) {
		t.Errorf("with 5 more, %v", got)
	}
}

// No other request resets the count of a request's attempts, however many there are.
func TestAttemptsAreCountedApart(t *testing.T) {
	s := begin(t).shared
	const id = 2 | Resent
	for attempt := 1; attempt <= MaxAttempts; attempt++ { // after as many workers have ended
		s.Workers.Add(1)
		for other := uint64(4); other < 400; other += 2 {
			if s.Exhausted(other|Resent) && attempt < MaxAttempts {
				t.Fatalf("request %d is exhausted at attempt %d", other, attempt)
			}
			if other%16 != 0 { // most are answered
				s.EndAttempts(other | Resent)
			}
		}
		if got := s.Exhausted(id); got != (attempt == MaxAttempts) {
			t.Errorf("after %d workers: exhausted is %v", attempt, got)
		}
	}
	s.EndAttempts(id)
	if s.Exhausted(id) {
		t.Error("exhausted after it was answered")
	}
}
