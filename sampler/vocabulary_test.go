package sampler

import (
	"math/rand/v2"
	"testing"

	"batchfs/cache/array"
)

func TestVocabularyFindsTokens(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, dtype := range []array.DType{array.Uint16, array.Uint32} {
		width := dtype.Size()
		most := int64(1)<<(8*width) - 1
		for _, size := range []int64{1, 2, 65, 50_257, most / 2, most/2 + 1, most/2 + 2, most - 1, most} {
			v := newVocabulary(size, dtype)
			for n := range 70 {
				for first := range n + 1 { // index of the bad token; n: none
					odd := random.IntN(2) // windows may be unaligned
					raw := make([]byte, odd, odd+n*width)
					for i := range n {
						value := []int64{random.Int64N(size), size - 1}[random.IntN(2)]
						if i == first || i > first && random.IntN(2) == 0 {
							value = []int64{size, most, size + random.Int64N(most-size+1)}[random.IntN(3)]
						}
						raw = appendToken(raw, value, width)
					}
					want := first
					if first == n {
						want = -1
					}
					if got := v.find(raw[odd:]); got != want {
						t.Fatalf("size %d of %s: of % x token %d is found, want %d", size, dtype, raw[odd:], got, want)
					}
				}
			}
		}
		for _, size := range []int64{0, most + 1, most + 2} {
			v := newVocabulary(size, dtype)
			if got := v.find([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}); got != -1 {
				t.Errorf("size %d of %s: %d is found", size, dtype, got)
			}
		}
	}
}
