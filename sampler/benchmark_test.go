package sampler

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

// BenchmarkRead reads whole batches in order from a cached file of uint16 tokens. No way of serving
// batches can be faster.
func BenchmarkRead(b *testing.B) {
	paths := []string{filepath.Join(b.TempDir(), "zeros.bin")}
	must(b, os.WriteFile(paths[0], make([]byte, 64<<20), 0o600))
	for _, access := range []localfile.Access{localfile.Remap, localfile.Pread} {
		for _, dtype := range []array.DType{array.Uint16, array.Int64} {
			for _, rows := range []int{12, 512} {
				for _, vocab := range []int64{0, 1<<16 - 1} {
					b.Run(fmt.Sprintf("%s/%s/%dx1024/vocab=%d", access, dtype, rows, vocab), func(b *testing.B) {
						q := openSequence(b, paths, cache.Options{DType: array.Uint16, Access: access, VocabSize: vocab},
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

func BenchmarkArrays(b *testing.B) {
	const n = 16 << 20 // tokens
	tokens := make([]byte, 0, 2*n)
	for i := range uint64(n) { // a document ends after about 600 tokens
		token := i * 0x9e3779b97f4a7c15 >> 50
		if token < 27 {
			token = 0
		}
		tokens = appendToken(tokens, int64(token), 2)
	}
	open := func(dtype array.DType, access localfile.Access, raw []byte, axes ...int) SourceArray {
		path := filepath.Join(b.TempDir(), "array.bin")
		must(b, os.WriteFile(path, raw, 0o600))
		a, err := cache.Open([]string{path}, cache.Options{DType: dtype, Axes: axes, Access: access})
		must(b, err)
		return a
	}
	mask, top := open(array.Uint8, localfile.Pread, make([]byte, n)), open(array.Float16, localfile.Pread, make([]byte, n*8*2), 8)
	plain := Settings{Name: "train", BatchSize: 12, BlockSize: 1024, DType: array.Uint16, Layout: XY, Order: Random, World: 1}
	documents, all := plain, plain
	documents.Ends, documents.Documents = EndsByToken, true
	all.Ends, all.Documents, all.Arrays = EndsByToken, true, []AlignedArray{{"mask", AtY}, {"top", AtX}}
	for _, access := range []localfile.Access{localfile.Remap, localfile.Pread} {
		main := open(array.Uint16, access, tokens)
		for _, test := range []struct {
			name     string
			settings Settings
			aligned  []SourceArray
		}{
			{"plain", plain, nil}, {"documents", documents, nil}, {"mask+top+documents", all, []SourceArray{mask, top}},
		} {
			b.Run(fmt.Sprintf("%s/%s", access, test.name), func(b *testing.B) {
				q, err := New([]Source{{Main: main, Aligned: test.aligned}}, test.settings)
				must(b, err)
				dst := make([]byte, q.Batch().Bytes())
				b.SetBytes(int64(len(dst)))
				b.ReportAllocs()
				for k := uint64(0); b.Loop(); k++ {
					must(b, q.Read(dst, k, 0))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(dst)), "ns/B")
			})
		}
	}
}
