package guard

import (
	"testing"
	"time"
)

// A read for the page cache that fails again and again is answered ever later, and others are not held up by it.
func TestPausesOfFailedReads(t *testing.T) {
	var f failures
	now := time.Now()
	page, other := failure{7, 4096}, failure{7, 8192}
	want := time.Duration(0)
	for i := range 20 {
		if got := f.note(page, now); got != want {
			t.Fatalf("failure %d: a pause of %v, want %v", i, got, want)
		}
		now = now.Add(want)
		want = min(max(2*want, firstPause), maxPause)
	}
	if got := f.note(other, now); got != 0 {
		t.Errorf("another page: a pause of %v", got)
	}
	if got := f.note(page, now.Add(2*time.Second)); got != 0 {
		t.Errorf("after two seconds: a pause of %v", got)
	}
	for i := range 10 * maxFailures {
		f.note(failure{page.node, uint64(i)}, now)
	}
	if n := len(f.last); n > maxFailures {
		t.Errorf("%d failures are remembered", n)
	}
}
