package sampler

import (
	"fmt"
	"testing"

	"batchfs/cache"
)

// Whole batches, one after the other, from a warm file of uint16 tokens: what any way to serve them costs at least.
func BenchmarkRead(b *testing.B) {
	paths := files(b, 2, 32<<20)
	for _, access := range []cache.Access{cache.Remap, cache.Advise, cache.Pread} {
		for _, dtype := range []DType{Uint16, Int64} {
			for _, rows := range []int{12, 512} {
				b.Run(fmt.Sprintf("%s/%s/%dx1024", access, dtype, rows), func(b *testing.B) {
					q := sequence(b, paths, cache.Options{Width: 2, Access: access},
						Settings{BatchSize: rows, BlockSize: 1024, DType: dtype, Order: Random})
					dst := make([]byte, q.BatchBytes())
					b.SetBytes(q.BatchBytes())
					b.ReportAllocs()
					for k := uint64(0); b.Loop(); k++ {
						must(b, q.Read(dst, k, 0))
					}
				})
			}
		}
	}
}

// Widening next to a plain copy of as many bytes.
func BenchmarkConvert(b *testing.B) {
	raw := make([]byte, 1024*4)
	for _, c := range []struct {
		dtype DType
		width int
	}{{Uint16, 2}, {Int32, 2}, {Int64, 2}, {Uint16, 4}, {Int32, 4}, {Uint32, 4}, {Int64, 4}} {
		b.Run(fmt.Sprintf("%dto%s", 8*c.width, c.dtype), func(b *testing.B) {
			dst := make([]byte, 1024*c.dtype.Size())
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				convert(dst, raw[:1024*c.width], c.dtype, c.width)
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
