package bench

import (
	"testing"
	"time"
)

func TestFigure(t *testing.T) {
	// With read-ahead, many short waits are followed by a long one. One wait is an outlier.
	var waits []float64
	for range 5 * 16 {
		waits = append(waits, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 170)
	}
	waits[100] = 1e6
	if got := (&scene{}).typicalWait(waits); got != 20 {
		t.Errorf("back to back: %v, want the mean of windows, 20", got)
	}
	if got := (&scene{Compute: time.Millisecond}).typicalWait(waits); got != 10 {
		t.Errorf("after compute: %v, want the median, 10", got)
	}
	if got := (&scene{Compute: time.Millisecond, Cold: true}).typicalWait(waits); got < 700 {
		t.Errorf("cold: %v, want the mean", got)
	}
}
