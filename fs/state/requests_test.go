package state

import "testing"

// Only the first outcome of a request counts, whatever later workers do with it.
func TestCountOnce(t *testing.T) {
	_, shared := mapSections(t, func(_ int, bytes uint64) uint64 { return bytes })
	succeeded, failed := 0, 0
	for step, request := range []struct {
		counter *int
		id      uint64

		succeeded, failed int
	}{
		{&failed, 2, 0, 1},
		{&failed, 2, 0, 1}, // the handler fails after the timeout
		{&succeeded, 2 | Resent, 0, 1},
		{&succeeded, 4, 1, 1},
		{&failed, 4 | Resent, 1, 1},          // the reply was never sent, and the next worker fails
		{&succeeded, 4 + 2*maxCounted, 2, 1}, // overwrites request 4
		{&failed, 4, 2, 2},
	} {
		shared.CountOnce(request.id, func() { *request.counter++ })
		if succeeded != request.succeeded || failed != request.failed {
			t.Errorf("step %d: %d succeeded and %d failed, want %d and %d", step, succeeded, failed, request.succeeded, request.failed)
		}
	}
	shared.NewConnection()
	if shared.CountOnce(4|Resent, func() { succeeded++ }); succeeded != 3 {
		t.Error("a request on a new connection was mistaken for one on the previous connection")
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
