package cache

import (
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blocks"
	"batchfs/cache/store"
)

// 12 windows of 1025 uint16 tokens from a warm file, as a batch of 12x1024 needs them.
func BenchmarkRead(b *testing.B) { benchmarkRead(b, files(b, 2, 32<<20), Options{DType: array.Uint16}) }

func benchmarkRead(b *testing.B, paths []string, o Options) {
	for _, o.Access = range []Access{Remap, Advise, Pread, Map} {
		b.Run(string(o.Access), func(b *testing.B) {
			tokens := open(b, paths, o)
			all := []Stretch{{tokens, 0, tokens.Len()}}
			if share := NewShare("benchmark", all); share != nil {
				must(b, Fetch(b.Context(), share, all, func(func(*Array, array.Window) bool) {}, func(int64) {}))
			}
			Flush()
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

// 12 windows of 1025 uint16 tokens, as BenchmarkRead has them, of objects whose blocks are all in the directory.
func BenchmarkReadObject(b *testing.B) {
	paths := files(b, 2, 32<<20)
	remote := Remote{
		Store:  store.Options{Endpoint: serveFiles(b, filepath.Dir(paths[0])), Anonymous: true, Timeout: time.Minute},
		Blocks: blocks.Options{Dir: b.TempDir(), Limit: 1 << 40, BlockBytes: 4 << 20, Memory: 64 << 20},
	}
	for i, path := range paths {
		paths[i] = "s3://bucket/" + filepath.Base(path)
	}
	benchmarkRead(b, paths, Options{DType: array.Uint16, Remote: remote})
}

// serveFiles serves the files of a directory as objects of s3://bucket.
func serveFiles(t testing.TB, dir string) (endpoint string) {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/bucket", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeFile(w, r, filepath.Join(dir, r.URL.Path))
	})))
	t.Cleanup(server.Close)
	return server.URL
}

// Where the documents of a row end, of 4 million of some 500 tokens: what rows of documents take besides their tokens.
func BenchmarkDocuments(b *testing.B) {
	const documents, mean = 4 << 20, 500
	path, random := filepath.Join(b.TempDir(), "train.bin"), rand.New(rand.NewPCG(1, 2))
	index, end := make([]byte, 0, 8*documents), int64(0)
	for range documents {
		end += 1 + random.Int64N(2*mean)
		index = binary.LittleEndian.AppendUint64(index, uint64(end))
	}
	must(b, os.WriteFile(path, nil, 0o600))
	must(b, os.Truncate(path, 2*end)) // no token is read
	must(b, os.WriteFile(path+IndexSuffix, index, 0o600))
	d := open(b, []string{path}, Options{DType: array.Uint16, Documents: DocumentsIndexed}).Documents()
	var some [16]int64
	for range 100_000 { // until the search knows the last numbers of most blocks
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
