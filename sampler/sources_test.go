package sampler

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
)

// sourceFiles writes the files of sources, one after the other.
func sourceFiles(t testing.TB, width int, lens ...[]int) (sources [][]string) {
	t.Helper()
	paths := files(t, width, slices.Concat(lens...)...)
	for _, l := range lens {
		sources, paths = append(sources, paths[:len(l)]), paths[len(l):]
	}
	return sources
}

// openSources opens the files of each source.
func openSources(t testing.TB, sources [][]string, o cache.Options) (all []Source) {
	t.Helper()
	for _, paths := range sources {
		source, err := cache.Open(paths, o)
		must(t, err)
		all = append(all, Source{Main: source})
	}
	return all
}

func length(s Source) int64 { return s.Main.Len() }

// total is the number of tokens of all sources.
func total(sources []Source) (n int64) {
	for _, tokens := range sources {
		n += length(tokens)
	}
	return n
}

// locate is the source of a token that is counted among those of all sources, and its position in the source.
func locate(sources []Source, pos int64) (source int, at int64) {
	for pos >= length(sources[source]) {
		pos -= length(sources[source])
		source++
	}
	return source, pos
}

// position is where row j of batch k begins among the tokens of all sources.
func position(sources []Source, q *Sequence, k uint64, j int) int64 {
	source, start := q.Start(k, j)
	return total(sources[:source]) + start
}

// The rows of a mixture, rank by rank and batch by batch, are those that each source has alone, one after the other, as
// often as its share says.
func TestMixtureHasTheRowsOfItsSources(t *testing.T) {
	const (
		blockSize = 8
		count     = 1000 // rows, of all ranks
	)
	lens := [][]int{{200, 9, 70}, {90, 33}, {10, 60, 17}}
	for _, weights := range [][]float64{{7, 2, 1}, {0.11, 0.37, 0.52}} {
		for _, join := range []bool{false, true} {
			o := cache.Options{DType: array.Uint16, Join: join, Access: cache.Pread}
			paths := sourceFiles(t, 2, lens...)
			tokens := openSources(t, paths, o)
			// What With keeps of this one must not depend on its settings.
			other := Settings{Split: "train", BatchSize: 1, BlockSize: 5, DType: array.Int64, Order: Random, World: 1, Weights: weights}
			base, err := New(tokens, other)
			must(t, err)
			for _, order := range []Order{Random, Shuffle, Sequential} {
				for world, batchSize := range map[int]int{1: 4, 2: 3, 5: 1} {
					name := fmt.Sprintf("%v, join %v, %s, world %d", weights, join, order, world)
					s := Settings{Split: "train", BatchSize: batchSize, BlockSize: blockSize, DType: array.Int64, Layout: WholeRows,
						Order: order, Seed: 3, World: world}
					var alone []*Sequence
					for i := range weights {
						only := s
						only.Split, only.BatchSize, only.World = fmt.Sprintf("train/%d", i), 1, 1
						q, err := New(openSources(t, paths[i:i+1], o), only)
						must(t, err)
						alone = append(alone, q)
					}
					var ranks []*Sequence
					for s.Rank = range world {
						q, err := base.With(s)
						must(t, err)
						ranks = append(ranks, q)
					}
					checkMixed(t, name, count, tokens, ranks, alone)
				}
			}
		}
	}
}

func checkMixed(t *testing.T, name string, count int, tokens []Source, ranks, alone []*Sequence) {
	t.Helper()
	var (
		have = make([]int, len(alone))
		seen = make([]map[int64]bool, len(alone)) // starts of the epoch
		n    = 0                                  // the global number of a row
	)
	for i := range alone {
		seen[i] = map[int64]bool{}
	}
	for k := uint64(0); n < count; k++ {
		for rank, q := range ranks {
			batch := read(t, q, k)[:q.Batch().MainBytes()]
			size := len(batch) / q.BatchSize
			for j := range q.BatchSize {
				row := batch[j*size:][:size]
				start := rows(row, size/8)[0][0]
				source, at := locate(tokens, start)
				index := have[source]
				if want := read(t, alone[source], uint64(index)); !bytes.Equal(row, want) {
					t.Fatalf("%s: rank %d, batch %d, row %d is % x, want row %d of source %d, % x",
						name, rank, k, j, row, index, source, want)
				}
				r := int(alone[source].RowsPerEpoch())
				if got := q.Row(k, j); got != uint64(n) || position(tokens, q, k, j) != start || q.Epoch(k, j) != uint64(index/r) {
					t.Fatalf("%s: rank %d, batch %d, row %d is number %d, starts at %d in epoch %d; want %d, %d, %d",
						name, rank, k, j, got, position(tokens, q, k, j), q.Epoch(k, j), n, start, index/r)
				}
				if gotSource, gotAt := q.Start(k, j); gotSource != source || gotAt != at {
					t.Fatalf("%s: rank %d, batch %d, row %d starts at token %d of source %d, want %d of %d",
						name, rank, k, j, gotAt, gotSource, at, source)
				}
				seen[source][start] = true
				if (index+1)%r == 0 {
					if len(seen[source]) != r && q.Order != Random {
						t.Fatalf("%s: source %d has %d of its %d windows in epoch %d", name, source, len(seen[source]), r, index/r)
					}
					clear(seen[source])
				}
				have[source], n = index+1, n+1
				for i, c := range have {
					rows, of := q.Share(i)
					if lag := n*rows - c*of; lag <= -of || lag >= of {
						t.Fatalf("%s: %d of the first %d rows are source %d's, of %d in %d", name, c, n, i, rows, of)
					}
				}
			}
		}
	}
	for i, q := range alone {
		if have[i] < 3*int(q.RowsPerEpoch()) {
			t.Errorf("%s: only %d rows of source %d", name, have[i], i)
		}
	}
}

// A stub is tokens without files: each is first plus its position.
type stub struct {
	dtype array.DType
	runs  []array.Run
	first int64
	vocab int64
	err   error // of Read
}

func (s *stub) DType() array.DType           { return s.dtype }
func (s *stub) Axes() []int                  { return nil }
func (s *stub) VocabSize() int64             { return s.vocab }
func (s *stub) Runs() []array.Run            { return s.runs }
func (s *stub) Locate(pos int64) array.Place { return array.Place{Path: "stub", Index: pos} }

func (s *stub) Cut(pos, _ int64) (end, begin int64) { return pos, pos }

func (s *stub) Len() int64 {
	last := s.runs[len(s.runs)-1]
	return last.Start + last.Len
}

func (s *stub) Read(ws []array.Window, visit func(int, []byte) error) error {
	for i, w := range ws {
		var raw []byte
		for n := range w.Len {
			raw = appendToken(raw, s.first+w.Start+int64(n), s.dtype.Size())
		}
		if err := visit(i, raw); err != nil {
			return err
		}
	}
	return s.err
}

// stubs are sources of runs of so many tokens, whose tokens are their positions among those of all sources.
func stubs(dtype array.DType, sources ...[]int64) (tokens []Source) {
	first := int64(0)
	for _, lens := range sources {
		s := &stub{dtype: dtype, first: first}
		s.runs, _ = rooms(false, lens...)
		first += s.Len()
		tokens = append(tokens, Source{Main: s})
	}
	return tokens
}

// Once a source has changed no batch is served, not even one that has no row of it.
func TestChangedSourceFailsEveryBatch(t *testing.T) {
	tokens := stubs(array.Uint16, []int64{100}, []int64{100})
	q, err := New(tokens, Settings{Split: "train", BatchSize: 1, BlockSize: 8, DType: array.Int64, Layout: XY, Order: Random, World: 1,
		Weights: []float64{1, 1}})
	must(t, err)
	dst := make([]byte, q.Batch().Bytes())
	for changed := range tokens {
		for k := range uint64(4) {
			must(t, q.Read(dst, k, 0))
			tokens[changed].Main.(*stub).err = syscall.ESTALE
			if err := q.Read(dst, k, 0); err != syscall.ESTALE {
				t.Errorf("batch %d with source %d changed: error %v", k, changed, err)
			}
			tokens[changed].Main.(*stub).err = nil
		}
	}
}

func TestNewRefusesSources(t *testing.T) {
	for _, test := range []struct {
		dtypes  []array.DType
		weights []float64
		want    string
	}{
		{nil, nil, "1 weights for 0 sources"},
		{nil, []float64{}, "a mixture needs at least one source"},
		{[]array.DType{array.Uint16, array.Uint16}, nil, "1 weights for 2 sources"},
		{[]array.DType{array.Uint16}, []float64{1, 1}, "2 weights for 1 sources"},
		{[]array.DType{array.Uint16, array.Uint16}, []float64{1, 0}, "weight 0 of source 1"},
		{[]array.DType{array.Uint16, array.Uint32}, []float64{1, 1}, "shard0.bin holds uint16 and shard0.bin uint32, which cannot be mixed"},
		{[]array.DType{array.Float32}, nil, "shard0.bin holds float32, not tokens"},
		{[]array.DType{array.Uint16, array.Float16}, []float64{1, 1}, "shard0.bin holds uint16 and shard0.bin float16, which cannot be mixed"},
	} {
		var tokens []Source
		for _, dtype := range test.dtypes {
			tokens = append(tokens, stubs(dtype, []int64{100})...)
		}
		_, err := New(tokens, Settings{BatchSize: 1, BlockSize: 8, DType: Native, Order: Random, World: 1, Weights: test.weights})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, weights %v: error %v, want %s", test.dtypes, test.weights, err, test.want)
		}
	}
}

// A counted source tells how many windows it was asked for at once.
type counted struct {
	Array
	most *int
}

func (c counted) Read(ws []array.Window, visit func(int, []byte) error) error {
	*c.most = max(*c.most, len(ws))
	return c.Array.Read(ws, visit)
}

// What a request for many short rows holds is bounded, and it is the same bytes; up to 1024 rows are fetched at once.
func TestManyRowsAreFetchedInGroups(t *testing.T) {
	most := 0
	sources := stubs(array.Uint16, []int64{500, 40}, []int64{300})
	for i := range sources {
		sources[i].Main = counted{sources[i].Main, &most}
	}
	for _, test := range []struct {
		sources   []Source
		batchSize int
		layout    Layout
		bytes     int64
	}{
		{sources, 1 << 18, XY, 30_000}, {sources, 1 << 18, WholeRows, 30_000}, {sources, 5000, XY, 20_000},
		{sources, 1, XY, 20_000}, {sources, 1025, WholeRows, 4100}, {sources[:1], 1024, XY, 4096},
	} {
		s := Settings{Split: "train", BatchSize: test.batchSize, BlockSize: 1, DType: array.Uint16, Layout: test.layout, Order: Shuffle, World: 1,
			Weights: []float64{1, 2}[:len(test.sources)]}
		q, err := New(test.sources, s)
		must(t, err)
		for _, off := range []int64{0, 1, max(q.Batch().Bytes()/2-700, 0)} {
			most = 0
			got := make([]byte, test.bytes)
			must(t, q.Read(got, 3, off))
			if most > 1024 || len(test.sources) == 1 && off == 0 && most < 1024 {
				t.Errorf("%+v: %d rows are fetched at once", test, most)
			}
			want := make([]byte, test.bytes) // in small parts
			for n := int64(0); n < test.bytes; n += 1000 {
				must(t, q.Read(want[n:min(n+1000, test.bytes)], 3, off+n))
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%+v: other bytes from %d on", test, off)
			}
		}
	}
}
