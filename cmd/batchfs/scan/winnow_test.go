package scan

import (
	"math/rand/v2"
	"testing"
)

// printsOf returns the fingerprints of a stream that begins at position first. It adds the numbers
// in parts of random length.
func printsOf(rng *rand.Rand, w int, numbers []uint64, first int64) (prints []runHash) {
	z := newWinnower(int64(w), first)
	for len(numbers) > 0 {
		n := min(1+rng.IntN(100), len(numbers))
		prints = z.add(numbers[:n], prints)
		numbers = numbers[n:]
	}
	return prints
}

func randomNumbers(rng *rand.Rand, n int, below uint64) []uint64 {
	list := make([]uint64, n)
	for i := range list {
		list[i] = rng.Uint64N(below)
	}
	return list
}

// If two streams share a run of at least 2w-1 numbers, a part of it is reported, whatever its
// offsets. Everything that is reported is in both streams.
func TestWinnowFindsCommonRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		w := 4 << rng.IntN(8)
		n := 2*w - 1 + rng.IntN(3*w)
		run := randomNumbers(rng, n, 1000)
		at, other := rng.IntN(5*w), rng.IntN(5*w)
		a := append(append(randomNumbers(rng, at, 1000), run...), randomNumbers(rng, rng.IntN(5*w), 1000)...)
		b := append(append(randomNumbers(rng, other, 1000), run...), randomNumbers(rng, rng.IntN(5*w), 1000)...)
		all, start := append(append([]uint64{}, a...), b...), int64(len(a))
		prints := append(printsOf(rng, w, a, 0), printsOf(rng, w, b, start)...)
		runs := duplicateRuns(prints, int64(w), []int64{0, start})
		found := false
		for _, r := range runs {
			for i := range r.n {
				if all[r.a+i] != all[r.b+i] {
					t.Fatalf("w %d: %+v is no common run", w, r)
				}
			}
			found = found || r.a < int64(at+n) && r.a+r.n > int64(at) && r.b-r.a == start+int64(other-at)
		}
		if !found {
			t.Fatalf("w %d: the run of %d at %d and %d is not among %v", w, n, at, other, runs)
		}
	}
}

func TestWinnowOfDullNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const w, n = 16, 10000
	for period := 1; period < 5*w; period++ {
		numbers := make([]uint64, n)
		for i := range numbers {
			numbers[i] = uint64(i % period)
		}
		prints := printsOf(rng, w, numbers, 0)
		if most := 5 * n / w; len(prints) > most || period == 1 && len(prints) > 0 {
			t.Errorf("period %d: %d prints", period, len(prints))
		}
	}
	if got, most := len(printsOf(rng, w, randomNumbers(rng, n, 1<<40), 0)), 5*n/2/w; got > most {
		t.Errorf("%d prints of random numbers", got)
	}
}
