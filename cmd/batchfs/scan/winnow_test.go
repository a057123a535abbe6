package scan

import (
	"math/rand/v2"
	"testing"
)

// hashesOf returns the hashes picked from a stream that begins at position first. It adds the
// numbers in parts of random length.
func hashesOf(rng *rand.Rand, w int, numbers []uint64, first int64) (hashes []windowHash) {
	z := newWinnower(int64(w), first)
	for len(numbers) > 0 {
		n := min(1+rng.IntN(100), len(numbers))
		hashes = z.add(numbers[:n], hashes)
		numbers = numbers[n:]
	}
	return hashes
}

func randomNumbers(rng *rand.Rand, n int, below uint64) []uint64 {
	list := make([]uint64, n)
	for i := range list {
		list[i] = rng.Uint64N(below)
	}
	return list
}

// If two streams share a passage of at least 2w-1 numbers, a part of it is reported, whatever its
// offsets. Everything that is reported is in both streams.
func TestWinnowFindsCommonPassages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		w := 4 << rng.IntN(8)
		n := 2*w - 1 + rng.IntN(3*w)
		passage := randomNumbers(rng, n, 1000)
		at, other := rng.IntN(5*w), rng.IntN(5*w)
		a := append(append(randomNumbers(rng, at, 1000), passage...), randomNumbers(rng, rng.IntN(5*w), 1000)...)
		b := append(append(randomNumbers(rng, other, 1000), passage...), randomNumbers(rng, rng.IntN(5*w), 1000)...)
		all, start := append(append([]uint64{}, a...), b...), int64(len(a))
		hashes := append(hashesOf(rng, w, a, 0), hashesOf(rng, w, b, start)...)
		passages := duplicatePassages(hashes, int64(w), []int64{0, start})
		found := false
		for _, r := range passages {
			for i := range r.n {
				if all[r.a+i] != all[r.b+i] {
					t.Fatalf("w %d: %+v is no common passage", w, r)
				}
			}
			found = found || r.a < int64(at+n) && r.a+r.n > int64(at) && r.b-r.a == start+int64(other-at)
		}
		if !found {
			t.Fatalf("w %d: the passage of %d at %d and %d is not among %v", w, n, at, other, passages)
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
		hashes := hashesOf(rng, w, numbers, 0)
		if most := 5 * n / w; len(hashes) > most || period == 1 && len(hashes) > 0 {
			t.Errorf("period %d: %d hashes", period, len(hashes))
		}
	}
	if got, most := len(hashesOf(rng, w, randomNumbers(rng, n, 1<<40), 0)), 5*n/2/w; got > most {
		t.Errorf("%d hashes of random numbers", got)
	}
}
