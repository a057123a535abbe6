package sampler

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
)

// Whole batches, one after the other, from a warm file of uint16 tokens: what any way to serve them costs at least.
func BenchmarkRead(b *testing.B) {
	paths := []string{filepath.Join(b.TempDir(), "zeros.bin")} // the values do not matter
	must(b, os.WriteFile(paths[0], make([]byte, 64<<20), 0o600))
	for _, access := range []cache.Access{cache.Remap, cache.Advise, cache.Pread} {
		for _, dtype := range []array.DType{array.Uint16, array.Int64} {
			for _, rows := range []int{12, 512} {
				for _, vocab := range []int64{0, 1<<16 - 1} {
					b.Run(fmt.Sprintf("%s/%s/%dx1024/vocab=%d", access, dtype, rows, vocab), func(b *testing.B) {
						q := sequence(b, paths, cache.Options{DType: array.Uint16, Access: access, VocabSize: vocab},
							Settings{BatchSize: rows, BlockSize: 1024, DType: dtype, Order: Random})
						dst := make([]byte, q.Batch().Bytes())
						b.SetBytes(int64(len(dst)))
						b.ReportAllocs()
						for k := uint64(0); b.Loop(); k++ {
							must(b, q.Read(dst, k, 0))
						}
					})
				}
			}
		}
	}
}

// A row compared with a vocabulary, of either half of the sizes that there are.
func BenchmarkVocabulary(b *testing.B) {
	for _, dtype := range []array.DType{array.Uint16, array.Uint32} {
		for _, size := range []int64{1 << 10, 1<<(8*dtype.Size()) - 1} {
			b.Run(fmt.Sprintf("%s/%d", dtype, size), func(b *testing.B) {
				v, raw := newVocabulary(size, dtype), make([]byte, 1025*dtype.Size())
				b.SetBytes(int64(len(raw)))
				for b.Loop() {
					if v.find(raw) >= 0 {
						b.Fatal("zero is found")
					}
				}
			})
		}
	}
}

// Widening next to a plain copy of as many bytes.
func BenchmarkConvert(b *testing.B) {
	raw := make([]byte, 1024*4)
	for _, c := range []struct {
		to, from array.DType
	}{
		{array.Uint16, array.Uint16}, {array.Int32, array.Uint16}, {array.Int64, array.Uint16},
		{array.Uint16, array.Uint32}, {array.Int32, array.Uint32}, {array.Uint32, array.Uint32}, {array.Int64, array.Uint32},
	} {
		b.Run(fmt.Sprintf("%dto%s", 8*c.from.Size(), c.to), func(b *testing.B) {
			dst, src := make([]byte, 1024*c.to.Size()), raw[:1024*c.from.Size()]
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				convert(dst, src, c.to, c.from)
			}
		})
	}
	b.Run("copy64", func(b *testing.B) {
		dst, src := make([]byte, 8*1024), make([]byte, 8*1024)
		b.SetBytes(8 * 1024)
		for b.Loop() {
			copy(dst, src)
		}
	})
}
