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

// A request that was sent again is exhausted when MaxAttempts workers have ended by themselves since, and no other request changes
// that, however many there are. Workers that were killed do not count.
func TestExhausted(t *testing.T) {
	s := begin(t).shared
	const id = 2 | Resent
	for worker := range 3 * MaxAttempts {
		s.Workers.Add(1)
		if worker%2 > 0 {
			s.Crashes.Add(1)
		}
		for n := range uint64(2000) {
			other := 4 + 2*(2000*uint64(worker)+n)
			if s.Exhausted(other | Resent) {
				t.Fatalf("worker %d: request %d is exhausted", worker, other)
			}
			if other%16 != 0 { // the others have no reader any more
				s.EndAttempts(other | Resent)
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
