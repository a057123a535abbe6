package cache

import (
	"math/rand/v2"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

// BenchmarkRead reads 12 windows of 1025 uint16 tokens from a warm file, as for a batch of 12x1024.
func BenchmarkRead(b *testing.B) {
	paths, o := writeFiles(b, 2, 32<<20), Options{DType: array.Uint16}
	for _, o.Access = range []localfile.Access{localfile.Remap, localfile.Pread} {
		b.Run(string(o.Access), func(b *testing.B) {
			tokens := open(b, paths, o)
			const rows, length = 12, 1025
			ws := make([]array.Window, rows)
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
					ws[i] = array.Window{Start: random.Int64N(tokens.Len() - length), Len: length}
				}
				must(b, tokens.Read(ws, visit))
			}
		})
	}
}
