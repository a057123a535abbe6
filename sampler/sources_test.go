package sampler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
)

func writeSources(t testing.TB, width int, lens ...[]int) (sources [][]string) {
	t.Helper()
	paths := writeFiles(t, width, slices.Concat(lens...)...)
	for _, l := range lens {
		sources, paths = append(sources, paths[:len(l)]), paths[len(l):]
	}
	return sources
}

func openSources(t testing.TB, sources [][]string, o cache.Options) (list []Source) {
	t.Helper()
	for _, paths := range sources {
		source, err := cache.Open(paths, o)
		must(t, err)
		list = append(list, Source{Main: source})
	}
	return list
}

// asMatched returns the files of sources as if a glob had matched them, so that they may be too
// short for a row.
func asMatched(sources ...[]string) map[string]int64 {
	matched := map[string]int64{}
	for _, path := range slices.Concat(sources...) {
		matched[path] = 1 << 20
	}
	return matched
}

func length(s Source) int64 { return s.Main.Len() }

func totalLen(sources []Source) (n int64) {
	for _, tokens := range sources {
		n += length(tokens)
	}
	return n
}

// globalPosition returns where row j of batch k begins in the tokens of all sources.
func globalPosition(sources []Source, q *Sequence, k uint64, j int) int64 {
	source, start := q.Start(k, j)
	return totalLen(sources[:source]) + start
}

// However many ranks there are, their rows from a source are, in order, those of a single process
// that reads only that source.
func TestRanksHaveTheRowsOfTheSources(t *testing.T) {
	tokens := stubSources(array.Uint16, []int64{200, 9, 70}, []int64{90, 33}, []int64{10, 60, 17})
	for _, weights := range [][]float64{{1}, {7, 2, 1}, {0.11, 0.37, 0.52}} {
		for _, order := range []Order{Random, Shuffle, Sequential} {
			for world, batchSize := range map[int]int{1: 4, 2: 3, 5: 1} {
				s := Settings{Name: "train", BatchSize: batchSize, BlockSize: 8, DType: Native, Layout: XY, Order: order, Seed: 3, World: world, Weights: weights}
				var alone, ranks []*Sequence
				for i := range weights {
					only := s
					only.BatchSize, only.World, only.Weights = 1, 1, nil
					if len(weights) > 1 {
						only.Name = fmt.Sprintf("train/%d", i)
					}
					q, err := New(tokens[i:i+1], only)
					must(t, err)
					alone = append(alone, q)
				}
				for s.Rank = range world {
					q, err := New(tokens[:len(weights)], s)
					must(t, err)
					ranks = append(ranks, q)
				}
				have, inBatch := make([]int, len(weights)), []uint64(nil)
				for n := range 1000 {
					k, rank, j := ranks[0].BatchOf(uint64(n))
					q := ranks[rank]
					source, start := q.Start(k, j)
					index := uint64(have[source])
					epoch := index / uint64(alone[source].RowsPerEpoch())
					if want := rowStart(alone[source], index, 0); start != want || q.Row(k, j) != uint64(n) || q.Epoch(k, j) != epoch {
						t.Fatalf("%+v: row %d of batch %d begins at %d of source %d in epoch %d, want its row %d, at %d in epoch %d",
							q.Settings, j, k, start, source, q.Epoch(k, j), index, want, epoch)
					}
					if j == 0 {
						inBatch = make([]uint64, len(weights))
					}
					if inBatch[source]++; j == batchSize-1 {
						for source, rows := range inBatch {
							if got := q.RowsOf(source, k); got != rows {
								t.Fatalf("%+v: %d rows of batch %d are of source %d, want %d", q.Settings, got, k, source, rows)
							}
						}
					}
					have[source]++
				}
			}
		}
	}
}

// The row after the last batch need not fit into a uint64.
func TestRowsOfTheLastBatch(t *testing.T) {
	q, err := New(stubSources(array.Uint16, []int64{200}, []int64{90}), Settings{Name: "train", BatchSize: MaxRows / 2, BlockSize: 8, DType: Native,
		Layout: XY, Order: Random, World: 2, Rank: 1, Weights: []float64{3, 1}})
	must(t, err)
	if a, b := q.RowsOf(0, MaxBatches-1), q.RowsOf(1, MaxBatches-1); a != MaxRows/8*3 || b != MaxRows/8 {
		t.Errorf("%d and %d rows of the last batch are of sources with weights 3 and 1, of %d rows", a, b, MaxRows/2)
	}
}

// stubSources returns sources with these extents. Tokens equal their positions among all sources.
func stubSources(dtype array.DType, sources ...[]int64) (tokens []Source) {
	first := int64(0)
	for _, lens := range sources {
		s := &stubArray{dtype: dtype, salt: first}
		s.extents, _ = extentsOf(false, lens...)
		first += s.Len()
		tokens = append(tokens, Source{Main: s})
	}
	return tokens
}

func TestNewRejectsSources(t *testing.T) {
	for _, test := range []struct {
		dtypes  []array.DType
		weights []float64
		want    string
	}{
		{nil, nil, "a mixture needs at least one source"},
		{[]array.DType{array.Uint16, array.Uint16}, nil, "1 weights for 2 sources"},
		{[]array.DType{array.Uint16}, []float64{1, 1}, "2 weights for 1 sources"},
		{[]array.DType{array.Uint16, array.Uint32}, []float64{1, 1}, "shard0.bin holds uint16 and shard0.bin uint32, which cannot be mixed"},
		{[]array.DType{array.Float32}, nil, "shard0.bin holds float32, not tokens"},
		{[]array.DType{array.Uint16, array.Float16}, []float64{1, 1}, "shard0.bin holds uint16 and shard0.bin float16, which cannot be mixed"},
	} {
		var tokens []Source
		for _, dtype := range test.dtypes {
			tokens = append(tokens, stubSources(dtype, []int64{100})...)
		}
		_, err := New(tokens, Settings{BatchSize: 1, BlockSize: 8, DType: Native, Order: Random, World: 1, Weights: test.weights})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, weights %v: error %v, want %s", test.dtypes, test.weights, err, test.want)
		}
	}
}

func TestManyRowsAreFetchedInGroups(t *testing.T) {
	arrays := []*stubArray{newNumbered(array.Uint16, 0, 500), newNumbered(array.Uint16, 500, 300)}
	sources := []Source{{Main: arrays[0]}, {Main: arrays[1]}}
	for _, test := range []struct {
		sources   int
		batchSize int
		layout    Layout
		bytes     int
	}{
		{2, 1 << 18, XY, 30_000}, {2, 5000, XY, 20_000}, {2, 1, XY, 20_000}, {2, 1025, Tokens, 4100}, {1, 1024, XY, 4096},
	} {
		q, err := New(sources[:test.sources], Settings{Name: "train", BatchSize: test.batchSize, BlockSize: 1, DType: array.Uint16,
			Layout: test.layout, Order: Shuffle, World: 1, Weights: []float64{1, 2}[:test.sources]})
		must(t, err)
		for _, off := range []int64{0, 1, max(q.Batch().Bytes()/2-700, 0)} {
			arrays[0].mostWindows, arrays[1].mostWindows = 0, 0
			must(t, q.Read(make([]byte, test.bytes), 3, off))
			if most := max(arrays[0].mostWindows, arrays[1].mostWindows); most > 1024 || test.sources == 1 && off == 0 && most < 1024 {
				t.Errorf("%+v: %d rows are fetched at once", test, most)
			}
		}
	}
}
