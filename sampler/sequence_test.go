package sampler

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

// writeFiles writes tokens of width bytes. Across all files, token i is i, truncated.
func writeFiles(t testing.TB, width int, lens ...int) (paths []string) {
	t.Helper()
	dir, next := t.TempDir(), int64(0)
	for i, n := range lens {
		var raw []byte
		for range n {
			raw, next = appendToken(raw, next, width), next+1
		}
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("shard%d.bin", i)))
		must(t, os.WriteFile(paths[i], raw, 0o600))
	}
	return paths
}

func appendToken(raw []byte, v int64, size int) []byte {
	return append(raw, binary.LittleEndian.AppendUint64(nil, uint64(v))[:size]...)
}

func attempts(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// openSequence opens files as a sequence, by default with batch_size 4, block_size 8, int64, xy,
// random and world 1.
func openSequence(t testing.TB, paths []string, o cache.Options, s Settings) *Sequence {
	t.Helper()
	if o.Reading.Access == "" {
		o.Reading.Access = localfile.Remap
	}
	tokens := openSources(t, [][]string{paths}, o)
	s.Name = "train"
	setDefault(&s.BatchSize, 4)
	setDefault(&s.BlockSize, 8)
	setDefault(&s.World, 1)
	setDefault(&s.DType, array.Int64)
	setDefault(&s.Layout, XY)
	setDefault(&s.Order, Random)
	q, err := New(tokens, s)
	must(t, err)
	return q
}

// rowStart is Start for a sequence of one source.
func rowStart(q *Sequence, k uint64, j int) int64 {
	_, start := q.Start(k, j)
	return start
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func readBatch(t testing.TB, q *Sequence, k uint64) []byte {
	t.Helper()
	batch := make([]byte, q.Batch().Bytes())
	must(t, q.Read(batch, k, 0))
	return batch
}

func batchRows(batch []byte, size int) (list [][]int64) {
	for row := range slices.Chunk(batch, 8*size) {
		var r []int64
		for v := range slices.Chunk(row, 8) {
			r = append(r, int64(binary.LittleEndian.Uint64(v)))
		}
		list = append(list, r)
	}
	return list
}

// A bad token fails exactly the reads that include it.
func TestTokensAreRejected(t *testing.T) {
	for _, test := range []struct {
		stored, dtype array.DType
		value, vocab  int64
		want          string
	}{
		{array.Uint32, array.Uint16, 65536, 0, "stub: token 7 is 65536, which dtype uint16 cannot hold; set dtype to one that can"},
		{array.Uint32, array.Uint16, 1<<32 - 1, 0, "stub: token 7 is 4294967295, which dtype uint16 cannot hold; set dtype to one that can"},
		{array.Uint32, array.Int32, 1 << 31, 0, "stub: token 7 is 2147483648, which dtype int32 cannot hold; set dtype to one that can"},
		{array.Uint16, array.Uint16, 8, 8, (&array.VocabularyError{Location: array.Location{Path: "stub", Index: 7}, Token: "8", Size: 8}).Error()},
		{array.Uint32, array.Int64, 8, 8, (&array.VocabularyError{Location: array.Location{Path: "stub", Index: 7}, Token: "8", Size: 8}).Error()},
	} {
		for _, layout := range []Layout{XY, Tokens} {
			tokens := &stubArray{dtype: test.stored, vocab: test.vocab, values: []int64{0, 1, 2, 3, 4, 5, 6, test.value, 4}}
			tokens.extents, _ = extentsOf(false, 9)
			q, err := New([]Source{{Main: tokens}}, Settings{BatchSize: 1, BlockSize: 4, DType: test.dtype, Layout: layout, Order: Sequential, World: 1})
			must(t, err)
			readBatch(t, q, 0)
			batch := make([]byte, q.Batch().Bytes())
			// y, or the row, ends one token after the bad one. A read may include part of it.
			last := q.Batch().Bytes() - int64(q.DType.Size())
			for off := range q.Batch().Bytes() {
				err := q.Read(batch[off:], 1, off)
				if off < last && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Fatalf("from byte %d: error %v, want %q", off, err, test.want)
				}
				if off >= last {
					must(t, err)
				}
			}
		}
	}
}

// Read returns the same bytes however a reader splits them.
func FuzzRead(f *testing.F) {
	const (
		join = 1 << iota
		inOrder
		wholeRows
		wide // 4-byte tokens
	)
	type seed struct {
		flags, dtype, shards, batchSize, blockSize, rank, world byte
		k                                                       uint64
		off                                                     int64
		n                                                       uint16
	}
	for _, s := range []seed{
		{0, 0, 1, 4, 8, 0, 1, 0, 0, 128},                        // one batch
		{0, 3, 1, 4, 8, 0, 1, 7, 0, 512},                        // the same with dtype int64
		{0, 0, 3, 4, 8, 1, 2, 5, 0, 1280},                       // ten batches
		{wholeRows, 2, 3, 3, 5, 0, 1, 5, 1, 2000},               // many, starting within a token
		{wide, 3, 2, 3, 5, 2, 3, 9, 241, 3},                     // within one token
		{join | inOrder, 3, 5, 5, 13, 0, 1, 100, 1037, 2089},    // odd cuts
		{join | wide | wholeRows, 1, 5, 1, 1, 0, 1, 3, 0, 4095}, // the smallest rows
		{inOrder | wide, 4, 4, 7, 3, 3, 4, 1 << 39, 5, 500},     // native dtype
		{0, 0, 1, 4, 8, 0, 1, 3, 63, 2},                         // end of x and start of y
		{wholeRows, 3, 1, 4, 8, 0, 1, 3, 71, 146},               // a row and a bit more
		{0, 0, 2, 4, 8, 6, 7, MaxBatches - 1, 0, 128},           // the last batch
		{0, 0, 2, 4, 8, 6, 7, MaxBatches - 1, 0, 129},           // one byte more
		{0, 0, 2, 4, 8, 0, 1, MaxBatches - 1, 2, 0},
		{0, 0, 2, 4, 8, 0, 1, MaxBatches, 0, 1},       // beyond the last batch
		{0, 0, 2, 4, 8, 0, 1, 0, MaxBatches * 128, 1}, // beyond it by the offset
		{inOrder, 0, 2, 4, 8, 0, 1, 0, (MaxBatches-1)*128 + 127, 1},
		{0, 0, 2, 4, 8, 0, 1, 1 << 63, 1<<63 - 1, 65535}, // out of range
		{wholeRows | join, 4, 6, 8, 20, 0, 1, 12, 8*21*2*3 + 21*2*3 + 7, 1},
	} {
		f.Add(s.flags, s.dtype, s.shards, s.batchSize, s.blockSize, s.rank, s.world, s.k, s.off, s.n)
	}

	f.Fuzz(func(t *testing.T, flags, dtype, shards, batchSize, blockSize, rank, world byte, k uint64, off int64, n uint16) {
		tokens := newNumbered(array.Uint16, 0, 0)
		if flags&wide != 0 {
			tokens.dtype = array.Uint32
		}
		tokens.extents, _ = extentsOf(flags&join != 0, []int64{30, 25, 7_000, 22, 40, 33}[:1+int(shards-1)%6]...)
		s := Settings{
			Name: "train", BatchSize: 1 + int((batchSize-1)%8), BlockSize: 1 + int((blockSize-1)%21), Layout: XY, Order: Random,
			World: 1 + int((world-1)%8), DType: []array.DType{array.Uint16, array.Uint32, array.Int32, array.Int64, Native}[dtype%5],
		}
		s.Rank = int(rank) % s.World
		if flags&inOrder != 0 {
			s.Order = Sequential
		}
		if flags&wholeRows != 0 {
			s.Layout = Tokens
		}
		sources := []Source{{Main: tokens}}
		q, err := New(sources, s)
		must(t, err)
		if off < 0 || k > 1<<63 {
			return
		}

		got := make([]byte, n)
		err = q.Read(got, k, off)
		k, off = k+uint64(off/q.Batch().Bytes()), off%q.Batch().Bytes()
		last := k + uint64((off+int64(n)-1)/q.Batch().Bytes())
		switch {
		case n > 0 && last >= MaxBatches:
			if err == nil || !strings.Contains(err.Error(), "the last one is 1099511627775") {
				t.Errorf("error %v for batch %d", err, last)
			}
		case err != nil:
			t.Error(err)
		default:
			var want []byte
			for ; k <= last && n > 0; k++ {
				want = append(want, expectedBatch(t, q, sources, k)...)
			}
			if want = want[min(int(off), len(want)):][:n]; !bytes.Equal(got, want) {
				t.Errorf("%+v: %d bytes from %d on, up to batch %d, are\n% x, want\n% x", q.Settings, n, off, last, got, want)
			}
		}
	})
}

func TestReadsAllocateNothing(t *testing.T) {
	if raceEnabled() {
		t.Skip("the race detector makes sync.Pool forget")
	}
	paths := writeFiles(t, 2, 100_000)
	for _, access := range []localfile.Access{localfile.Remap, localfile.Advise, localfile.Pread} {
		for _, dtype := range []array.DType{array.Uint16, array.Int64} {
			q := openSequence(t, paths, cache.Options{DType: array.Uint16, Reading: localfile.Options{Access: access}}, Settings{BatchSize: 12, BlockSize: 1024, DType: dtype})
			dst, k := make([]byte, q.Batch().Bytes()), uint64(0)
			n := testing.AllocsPerRun(100, func() {
				must(t, q.Read(dst, k, 0))
				k++
			})
			if n > 0 {
				t.Errorf("%s, %s: %v allocations a read", access, dtype, n)
			}
		}
	}

	from := openSources(t, [][]string{paths}, cache.Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Pread}})[0]
	from.Aligned = []SourceArray{from.Main}
	q, err := New([]Source{from, from}, Settings{Name: "train", BatchSize: 12, BlockSize: 1024, DType: array.Int64, Layout: XY, Order: Shuffle, World: 1,
		Weights: []float64{1, 2}, Arrays: []AlignedArray{{"again", AtX}}, HasEOT: true, EOT: 7, Documents: true, MaskTargets: true})
	must(t, err)
	for _, off := range []int64{0, 12345} {
		dst, k := make([]byte, q.Batch().Bytes()-2*off), uint64(0)
		if n := testing.AllocsPerRun(100, func() {
			must(t, q.Read(dst, k, off))
			k++
		}); n > 0 {
			t.Errorf("arrays, from byte %d: %v allocations a read", off, n)
		}
	}
}

func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// A setting means the same whether it is read from a Sequence or from its Settings.
func TestNoMethodHidesASetting(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		if _, ok := reflect.TypeFor[*Sequence]().MethodByName(field.Name); ok {
			t.Errorf("method %s of Sequence has the name of a setting", field.Name)
		}
	}
}
