package cache

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// BenchmarkRead reads 12 windows of 1025 uint16 tokens from a warm file, as a batch of 12x1024
// needs them.
func BenchmarkRead(b *testing.B) {
	paths, o := files(b, 2, 32<<20), Options{DType: array.Uint16}
	for _, o.Access = range []localfile.Access{localfile.Remap, localfile.Advise, localfile.Pread, localfile.Map} {
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

// BenchmarkDocuments finds the ends of the documents of a row, among 4 million of about 500 tokens.
func BenchmarkDocuments(b *testing.B) {
	const documents, mean = 4 << 20, 500
	path, random := filepath.Join(b.TempDir(), "train.bin"), rand.New(rand.NewPCG(1, 2))
	index, end := make([]byte, 0, 8*documents), int64(0)
	for range documents {
		end += 1 + random.Int64N(2*mean)
		index = binary.LittleEndian.AppendUint64(index, uint64(end))
	}
	must(b, os.WriteFile(path, nil, 0o600))
	must(b, os.Truncate(path, 2*end)) // its tokens are not read
	must(b, os.WriteFile(path+format.IndexSuffix, index, 0o600))
	d := open(b, []string{path}, Options{DType: array.Uint16, Documents: DocumentsIndexed}).Documents()
	var some [16]int64
	for range 100_000 { // until most last numbers of blocks are in memory
		_, err := d.Of(random.Int64N(end))
		must(b, err)
	}
	b.ReportAllocs()
	for b.Loop() {
		first, err := d.Of(random.Int64N(end))
		must(b, err)
		must(b, d.Ends(first, some[:min(d.Count()-first, 16)]))
	}
}
