package main

import (
	"errors"
	"sync/atomic"
	"testing"

	"batchfs/internal/testwait"
)

// Whether a mount keeps its schedules is known when a restart has ended: a worker that may still be
// rejected has already set its generation.
func TestKeepsSchedule(t *testing.T) {
	var last atomic.Uint64
	for _, test := range []struct {
		outcome func(adopted *atomic.Uint64)
		want    bool
	}{
		{func(*atomic.Uint64) { last.Store(1) }, true}, // as the next worker does
		{func(adopted *atomic.Uint64) { adopted.Store(2) }, false},
	} {
		var adopted atomic.Uint64
		adopted.Store(1)
		last.Store(2)
		asked, keeps := make(chan bool, 1), make(chan bool, 1)
		go func() {
			keeps <- keepsSchedule(1, last.Load, func() (uint64, error) {
				select {
				case asked <- true:
				default:
				}
				return adopted.Load(), nil
			})
		}()
		testwait.For(t, "the first look at the snapshot", asked)
		test.outcome(&adopted)
		if got := testwait.For(t, "the end of keepsSchedule", keeps); got != test.want {
			t.Errorf("keepsSchedule returned %t", got)
		}
	}
	if keepsSchedule(1, last.Load, func() (uint64, error) { return 0, errors.New("the mount has ended") }) {
		t.Error("keepsSchedule returned true after the end of the mount")
	}
}
