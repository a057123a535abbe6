package state

import "testing"

// A request is counted at most once as failed and once as succeeded, whatever happens to it in a
// series of workers.
func TestCountOnce(t *testing.T) {
	_, shared := made(t, func(_ int, bytes uint64) uint64 { return bytes })
	succeeded, failed := 0, 0
	succeed := func(id uint64) { shared.CountOnce(id, func() { succeeded++ }) }
	fail := func(id uint64) { shared.CountFailureOnce(id, func() { failed++ }) }
	for step, after := range []struct {
		count             func(id uint64)
		id                uint64
		succeeded, failed int
	}{
		{fail, 2, 0, 1},
		{fail, 2, 0, 1}, // the handler fails after the request has timed out
		{fail, 2 | Resent, 0, 1},
		{succeed, 2 | Resent, 1, 1}, // the error never reached the reader
		{succeed, 2 | Resent, 1, 1},
		{succeed, 4, 2, 1},
		{succeed, 4 + 2*maxCounted, 3, 1}, // overwrites request 4
		{fail, 4, 3, 2},
	} {
		if after.count(after.id); succeeded != after.succeeded || failed != after.failed {
			t.Errorf("step %d: %d succeeded and %d failed, want %d and %d", step, succeeded, failed, after.succeeded, after.failed)
		}
	}
	shared.NewConnection()
	if succeed(4 | Resent); succeeded != 4 {
		t.Error("a request of a new connection is taken for one of the connection before")
	}
}
