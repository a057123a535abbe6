package sampler

import (
	"math/rand/v2"
	"testing"

	"batchfs/cache/array"
)

// The first token that is not below the size is found, wherever it stands, and no other is.
func TestVocabularyFindsTokens(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, dtype := range []array.DType{array.Uint16, array.Uint32} {
		width := dtype.Size()
		most := int64(1)<<(8*width) - 1
		for _, size := range []int64{1, 2, 65, 50_257, most / 2, most/2 + 1, most/2 + 2, most - 1, most} {
			v := newVocabulary(size, dtype)
			for n := range 70 {
				for odd := range 2 { // a window begins anywhere
					raw := make([]byte, odd, odd+n*width)
					for range n {
						value := random.Int64N(size)
						if random.IntN(2) == 0 {
							value = size - 1
						}
						raw = appendToken(raw, value, width)
					}
					raw = raw[odd:]
					if got := v.find(raw); got != -1 {
						t.Fatalf("%d of %d tokens of %s is not below %d", got, n, dtype, size)
					}
					for first := range n {
						was := [4]byte{}
						copy(was[:width], raw[first*width:])
						value := []int64{size, most, size + random.Int64N(most-size+1)}[random.IntN(3)]
						copy(raw[first*width:], appendToken(nil, value, width))
						if got := v.find(raw); got != first {
							t.Fatalf("token %d of %d of %s is %d, and not below %d: %d is found", first, n, dtype, value, size, got)
						}
						copy(raw[first*width:], was[:width])
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
