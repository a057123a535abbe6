package cache

import (
	"math/rand/v2"
	"testing"

	"batchfs/cache/array"
)

// 12 windows of 1025 uint16 tokens from a warm file, as a batch of 12x1024 needs them.
func BenchmarkRead(b *testing.B) {
	paths := files(b, 2, 32<<20)
	for _, access := range []Access{Remap, Advise, Pread, Map} {
		b.Run(string(access), func(b *testing.B) {
			tokens := open(b, paths, Options{DType: array.Uint16, Access: access})
			const rows, length = 12, 1025
			ws := make([]Window, rows)
			dst := make([]byte, 2*length)
			visit := func(_ int, raw []byte) error {
				copy(dst, raw)
				return nil
			}
			random := rand.New(rand.NewPCG(1, 2))
			b.SetBytes(rows * length * 2)
			b.ReportAllocs()
			for b.Loop() {
				for i := range ws {
					ws[i] = Window{Start: random.Int64N(tokens.Len() - length), Len: length}
				}
				must(b, tokens.Read(ws, visit))
			}
		})
	}
}
