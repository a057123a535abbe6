package sampler

import (
	"errors"
	"math/rand/v2"
	"testing"

	"batchfs/cache"
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

// A token beyond the vocabulary is an error of every read that shows it, and of no other.
func TestTokenBeyondTheVocabulary(t *testing.T) {
	for _, width := range []int{2, 4} {
		for _, dtype := range []array.DType{array.Uint16, array.Int64} {
			for _, layout := range []Layout{XY, WholeRows} {
				paths := holding(t, width, []int64{0, 1, 2, 3, 4}, []int64{5, 6, 7, 8, 4})
				tokens, err := cache.Open(paths, cache.Options{DType: unsigned(width)})
				must(t, err)
				q, err := New([]Source{{Main: sized{tokens, 8}}}, Settings{BatchSize: 1, BlockSize: 4, DType: dtype, Layout: layout, Order: Sequential, World: 1})
				must(t, err)
				read(t, q, 0)
				batch := make([]byte, q.Batch().Bytes())
				for off := range q.Batch().Bytes() { // also where the token is only partly asked for
					err := q.Read(batch[off:], 1, off)
					var beyond *array.VocabularyError
					want := array.VocabularyError{Place: array.Place{Path: paths[1], Index: 3}, Token: "8", Size: 8}
					if last := q.Batch().Bytes() - int64(q.DType.Size()); off >= last {
						must(t, err)
					} else if !errors.As(err, &beyond) || *beyond != want {
						t.Fatalf("from byte %d: error %v, want %v", off, err, &want)
					}
				}
			}
		}
	}
}

// sized are tokens of a vocabulary that their files were not compared with when they were opened.
type sized struct {
	*cache.Array
	size int64
}

func (s sized) VocabSize() int64 { return s.size }
