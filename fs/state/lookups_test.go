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
		s.Blame()
		for other := uint64(4); other < 400; other += 2 {
			if _, exhausted := s.Attempt(other | Resent); exhausted {
				t.Fatalf("request %d is exhausted at attempt %d", other, attempt)
			}
			if other%16 != 0 { // most are answered
				s.EndAttempts(other | Resent)
			}
		}
		suspect, exhausted := s.Attempt(id)
		if exhausted != (attempt == MaxAttempts) || suspect != (attempt >= maxUnanswered) {
			t.Errorf("after %d workers: a suspect: %v, exhausted: %v", attempt, suspect, exhausted)
		}
		if suspect {
			s.Suspect(id)
		}
	}
	s.EndAttempts(id)
	if suspect, exhausted := s.Attempt(id); suspect || exhausted {
		t.Error("suspected after it was answered")
	}
}

// Of the requests that many workers have left unanswered, those are blamed that a worker had begun to answer: the one that it
// began last, unless that was long ago.
func TestBlame(t *testing.T) {
	for name, c := range map[string]struct {
		ends   func(s *Shared) // what happened in each worker, which then ends
		blamed []uint64
	}{
		"begun last":      {func(s *Shared) { s.Suspect(2); s.Clear(2); s.Suspect(4) }, []uint64{4}},
		"begun long ago":  {func(s *Shared) { s.Suspect(2); s.Clear(2); s.Suspect(4); s.Clear(4) }, []uint64{2, 4}},
		"not begun":       {func(s *Shared) {}, nil},
		"a restart":       {func(s *Shared) { s.Suspect(2); s.Acquit() }, nil},
		"another's panic": {func(s *Shared) { s.Suspect(2); s.Clear(2); s.Suspect(100) }, nil},
	} {
		s := begin(t).shared
		for range 10 {
			s.Workers.Add(1)
			s.Blame()
			for id := uint64(2); id <= 6; id += 2 {
				s.Attempt(id | Resent)
			}
			c.ends(s)
		}
		var blamed []uint64
		for id := uint64(2); id <= 6; id += 2 {
			if _, exhausted := s.Attempt(id | Resent); exhausted {
				blamed = append(blamed, id)
			}
		}
		if !slices.Equal(blamed, c.blamed) {
			t.Errorf("%s: %d are blamed, want %d", name, blamed, c.blamed)
		}
	}
}
