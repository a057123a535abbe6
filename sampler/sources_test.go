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

// position is where row j of batch k begins among the tokens of all sources.
func position(sources []Source, q *Sequence, k uint64, j int) int64 {
	source, start := q.Start(k, j)
	return total(sources[:source]) + start
}

// The rows of a mixture, rank by rank and batch by batch, are those that each source has alone, one after the other, as often as its share
// says in every stretch of rows.
func TestMixtureHasTheRowsOfItsSources(t *testing.T) {
	tokens := stubs(array.Uint16, []int64{200, 9, 70}, []int64{90, 33}, []int64{10, 60, 17})
	for _, weights := range [][]float64{{7, 2, 1}, {0.11, 0.37, 0.52}} {
		for _, order := range []Order{Random, Shuffle, Sequential} {
			for world, batchSize := range map[int]int{1: 4, 2: 3, 5: 1} {
				s := Settings{Split: "train", BatchSize: batchSize, BlockSize: 8, DType: Native, Layout: XY, Order: order, Seed: 3, World: world, Weights: weights}
				var alone, ranks []*Sequence
				for i := range weights {
					only := s
					only.Split, only.BatchSize, only.World, only.Weights = fmt.Sprintf("train/%d", i), 1, 1, nil
					q, err := New(tokens[i:i+1], only)
					must(t, err)
					alone = append(alone, q)
				}
				for s.Rank = range world {
					q, err := New(tokens, s)
					must(t, err)
					ranks = append(ranks, q)
				}
				have := make([]int, len(weights))
				for n := range 1000 {
					k, rank, j := ranks[0].BatchOf(uint64(n))
					q := ranks[rank]
					source, at := q.Start(k, j)
					index := uint64(have[source])
					epoch := index / uint64(alone[source].RowsPerEpoch())
					if want := begin(alone[source], index, 0); at != want || q.Row(k, j) != uint64(n) || q.Epoch(k, j) != epoch {
						t.Fatalf("%+v: row %d of batch %d begins at %d of source %d in epoch %d, want its row %d, at %d in epoch %d",
							q.Settings, j, k, at, source, q.Epoch(k, j), index, want, epoch)
					}
					have[source]++
					for i, c := range have {
						if rows, of := q.Share(i); (n+1)*rows-c*of <= -of || (n+1)*rows-c*of >= of {
							t.Fatalf("%+v: %d of the first %d rows are source %d's, of %d in %d", q.Settings, c, n+1, i, rows, of)
						}
					}
				}
			}
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

// Once a source has changed no batch is served, not even one without its rows.
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
