package main

import (
	"math"
	"slices"
	"testing"
)

func TestTail(t *testing.T) {
	for _, c := range []struct {
		n, k int
		want float64
	}{{1, 0, 1}, {1, 1, 0.5}, {4, 3, 5. / 16}, {50, 51, 0}, {50, 32, 0.03245}, {50, 31, 0.05946}} {
		if p := tail(c.n, c.k); math.Abs(p-c.want) > 1e-5 {
			t.Errorf("%d or more of %d coins: %v, want %v", c.k, c.n, p, c.want)
		}
	}
}

// A median above the limit is told only where most rounds say so.
func TestSlower(t *testing.T) {
	for above, want := range map[int]bool{0: false, 31: false, 32: true, 50: true} {
		r := &way{ratios: slices.Repeat([]float64{1}, 50)}
		for i := range above {
			r.ratios[i] = 1.06
		}
		if r.print() != want {
			t.Errorf("%d of 50 rounds above the limit: slower %v, want %v", above, !want, want)
		}
	}
}
