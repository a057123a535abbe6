package sampler

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
	"batchfs/test/e2e"
)

var allOrders = []Order{Random, Shuffle, Sequential, Torch, Torch26}

// A corpus is the file lengths of sources, and how they are mixed.
type corpus struct {
	name     string
	fileLens [][]int
	weights  []float64
	join     bool
	stages   []Stage
	epochs   []float64 // MaxEpochs
}

var corpora = []corpus{
	{"one file", [][]int{{51}}, nil, false, nil, nil},
	{"one window", [][]int{{5}}, nil, false, nil, nil},
	{"a file that ends with a window", [][]int{{41}}, nil, false, nil, nil},
	{"files", [][]int{{26, 5, 33}}, nil, false, nil, nil},
	{"short files", [][]int{{26, 1, 4, 5, 33, 3}}, nil, false, nil, nil},
	{"short files, mixed", [][]int{{26, 1, 17}, {3, 9}}, []float64{3, 1}, false, nil, nil},
	{"joined", [][]int{{26, 2, 33}}, nil, true, nil, nil},
	{"mixed", [][]int{{26, 17}, {9}}, []float64{3, 1}, false, nil, nil},
	{"mixed and joined", [][]int{{26, 3}, {9, 9}, {6}}, []float64{0.5, 0.2, 0.3}, true, nil, nil},
}

// stagedCorpora change during a run.
var stagedCorpora = []corpus{
	{"a source added", [][]int{{26, 17}, {9}, {31}}, nil, false, []Stage{{0, 0, []float64{3, 1, 0}}, {6, 0, []float64{0, 1, 4}}, {0, 77, []float64{1, 1, 1}}}, nil},
	{"a limit", [][]int{{26, 17}, {29}, {31}}, []float64{3, 1, 1}, false, nil, []float64{1.5, 0, 0.3}},
	{"an end", [][]int{{26, 17}, {29}}, []float64{3, 1}, true, nil, []float64{1.5, 0.8}},
	{"one source", [][]int{{51}}, nil, false, []Stage{{0, 0, []float64{2}}, {9, 0, []float64{1}}}, []float64{1.1}},
}

// open returns 4-byte tokens that equal their positions among all sources.
func (c corpus) open(t testing.TB) []Source {
	t.Helper()
	sources := writeSources(t, 4, c.fileLens...)
	return openSources(t, sources, cache.Options{DType: array.Uint32, Join: c.join, Reading: localfile.Options{Access: localfile.Pread}, Matched: asMatched(sources...)})
}

func (c corpus) supports(o Order) bool {
	return o != Torch && o != Torch26 || len(c.fileLens) == 1 && (c.join || len(c.fileLens[0]) == 1) && c.stages == nil
}

func find(t testing.TB, q *Sequence, source int, pos int64, epoch uint64, progress func(int64, int64) bool) []Hit {
	t.Helper()
	hits, err := q.Find(source, pos, epoch, progress)
	must(t, err)
	return hits
}

// checkFind compares Find with the rows of all ranks in the first epochs, for tokens up to step
// apart.
func checkFind(t *testing.T, ranks []*Sequence, step int64) {
	t.Helper()
	const epochs = 2
	type token struct {
		source int
		pos    int64
		epoch  uint64
	}
	want, last := map[token][]Hit{}, uint64(0)
	for _, q := range ranks {
		together, _ := q.epochGroup()
		for i := range q.sources {
			start := q.Phases()[len(q.Phases())-1]
			if rows := start.Rows[i]; rows > 0 {
				end := start.Row + (epochs*uint64(q.sources[i].share.windows)/uint64(rows)+2)*uint64(start.Period)
				last = max(last, end/uint64(q.BatchSize*together)+1)
			}
		}
	}
	for k := range min(last+1, ranks[0].Batches()) {
		for _, q := range ranks {
			for j := range q.BatchSize {
				source, segments, err := q.Segments(k, j)
				must(t, err)
				for _, s := range segments {
					s = s.Copied()
					for i := range s.Len {
						t := token{source, s.Start + int64(i), q.Epoch(k, j)}
						want[t] = append(want[t], Hit{q.Row(k, j), s.At + i})
					}
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(7, 8))
	look := ranks[r.IntN(len(ranks))]
	for epoch := range uint64(epochs) {
		for source := range look.sources {
			for pos := int64(0); pos < look.sources[source].arrays[0].Len(); pos += 1 + r.Int64N(step) {
				got, want := find(t, look, source, pos, epoch, func(int64, int64) bool { return true }), want[token{source, pos, epoch}]
				slices.SortFunc(want, func(a, b Hit) int { return cmp.Compare(a.Row, b.Row) })
				if !slices.Equal(got, want) {
					t.Fatalf("%+v: token %d of source %d is found in epoch %d in %v, and is in %v", look.Settings, pos, source, epoch, got, want)
				}
			}
		}
	}
}

func TestFindAgreesWithTheRows(t *testing.T) {
	for _, a := range slices.Concat(corpora, stagedCorpora) {
		tokens := a.open(t)
		for _, order := range allOrders {
			for _, world := range []int{1, 2} {
				if !a.supports(order) {
					continue
				}
				var ranks []*Sequence
				for rank := range world {
					q, err := New(tokens, Settings{Name: "train", BatchSize: 3, BlockSize: 4, DType: array.Int64, Layout: XY, Order: order,
						Seed: 7, Rank: rank, World: world, Weights: a.weights, Stages: a.stages, MaxEpochs: a.epochs})
					must(t, err)
					ranks = append(ranks, q)
				}
				checkFind(t, ranks, 1)
			}
		}
	}
	r := rand.New(rand.NewPCG(7, 8))
	for _, kind := range documentKinds {
		for i, order := range []Order{Random, Shuffle, Sequential, Random, Shuffle, Sequential} {
			bos := []*uint64{nil, new(testBOS)}[i/3]
			for _, tooLong := range tooLongs {
				q, err := New([]Source{documentSource(array.Uint32, randomDocuments(r, attempts(30, groupDocuments+100), 12))}, Settings{Name: "train",
					BatchSize: 3, BlockSize: 8, DType: array.Int64, Layout: XY, Order: order, Seed: 3, World: 1, Rows: kind, TooLong: tooLong, BOS: bos})
				must(t, err)
				checkFind(t, []*Sequence{q}, int64(attempts(1, 997)))
			}
		}
	}
	for range attempts(30, e2e.NormalOrSoak(100, 300)) {
		s := randomHosts(r)
		if ranks, err := s.ranks(s.open(t)); err == nil {
			checkFind(t, ranks, 1)
		}
	}
}

// In the last epochs, hits are correct and lie in batches below MaxBatches.
func TestFindAtTheEnd(t *testing.T) {
	always := func(int64, int64) bool { return true }
	for _, a := range corpora {
		tokens := a.open(t)
		for _, world := range []int{1, 1 << 22} { // with 1<<22, the last row has number 2^64-1
			for _, order := range []Order{Random, Shuffle, Sequential} {
				s := Settings{BatchSize: 4, BlockSize: 4, DType: array.Int64, Layout: XY, Order: order, World: world, Weights: a.weights}
				q, err := New(tokens, s)
				must(t, err)
				pos := int64(2)
				end := uint64(0)
				// Search for the last epoch that has the token (for random: one of the last).
				for step := uint64(1) << 63; step > 0; step /= 2 {
					if end+step != 0 && len(find(t, q, 0, pos, end+step, always)) > 0 {
						end += step
					}
				}
				if end == 0 && len(find(t, q, 0, pos, 0, always)) == 0 {
					t.Fatalf("%s, %s: token %d is never found", a.name, order, pos)
				}
				for _, epoch := range []uint64{end - 1, end} {
					for _, f := range find(t, q, 0, pos, epoch, always) {
						k, rank, j := q.BatchOf(f.Row)
						if k >= MaxBatches {
							t.Fatalf("%s, %s, world %d: token %d in epoch %d is in batch %d", a.name, order, world, pos, epoch, k)
						}
						s.Rank = rank
						reader, err := q.With(s)
						must(t, err)
						if source, start := reader.Start(k, j); source != 0 || start+int64(f.Index) != pos || reader.Epoch(k, j) != epoch {
							t.Errorf("%s, %s, world %d: batch %d of rank %d has not token %d at row %d, index %d, in epoch %d",
								a.name, order, world, k, rank, pos, j, f.Index, epoch)
						}
					}
				}
				for _, epoch := range []uint64{1 << 62, 1 << 63, 1<<64 - 1} {
					if finds := find(t, q, 0, pos, epoch, always); len(finds) > 0 && epoch > end {
						t.Errorf("%s, %s, world %d: found in epoch %d at %v", a.name, order, world, epoch, finds)
					}
				}
			}
		}
	}
}

func TestFindStops(t *testing.T) {
	paths := writeFiles(t, 4, 200_000)
	for _, order := range []Order{Random, Torch} {
		for rank := range 2 {
			q := openSequence(t, paths, cache.Options{DType: array.Uint32}, Settings{BatchSize: 1, BlockSize: 1, Order: order, Rank: rank, World: 2})
			for most := 1; most <= 3; most++ {
				var asked []int64
				find(t, q, 0, 0, 0, func(rows, _ int64) bool {
					asked = append(asked, rows)
					return len(asked) < most
				})
				if len(asked) != most || !slices.IsSorted(asked) || asked[len(asked)-1] > q.RowsPerEpoch() {
					t.Errorf("%s, rank %d: asked at rows %v, want to be stopped at %d", order, rank, asked, most)
				}
			}
		}
	}
}

func TestWithEqualsNew(t *testing.T) {
	changes := []func(*Settings){
		func(*Settings) {},
		func(s *Settings) { s.BatchSize, s.Seed = 5, 8 },
		func(s *Settings) { s.BlockSize, s.Name = 3, "val" },
		func(s *Settings) { s.DType, s.Layout = Native, Tokens },
		func(s *Settings) { s.Order, s.Rank, s.World = Shuffle, 2, 3 },
		func(s *Settings) { s.Order = Sequential },
		func(s *Settings) { s.Order = Torch26 },
		func(s *Settings) { s.Order, s.TorchState = Torch, torchState(t) },
		func(s *Settings) { s.BlockSize = 100 },
		func(s *Settings) { s.Order, s.TorchState = Torch26, []byte("no state") },
		func(s *Settings) { s.Order, s.TorchState, s.World = Torch, torchState(t), 2 },
	}
	for _, a := range corpora {
		tokens := a.open(t)
		base := Settings{Name: "train", BatchSize: 3, BlockSize: 4, DType: array.Int64, Layout: XY, Order: Random, Seed: 7, World: 1, Weights: a.weights}
		q, err := New(tokens, base)
		must(t, err)
		for _, before := range changes {
			for _, change := range changes {
				old, s := base, base
				before(&old)
				change(&s)
				from, err := q.With(old)
				if err != nil {
					continue
				}
				want, refused := New(tokens, s)
				got, err := from.With(s)
				if fmt.Sprint(err) != fmt.Sprint(refused) {
					t.Fatalf("%s: %+v of %+v: error %v, of New %v", a.name, s, old, err, refused)
				}
				if err != nil {
					continue
				}
				if !reflect.DeepEqual(got.Settings, want.Settings) || !bytes.Equal(readBatch(t, got, 2), readBatch(t, want, 2)) {
					t.Fatalf("%s: %+v of %+v are %+v, and New's %+v, or their batches differ", a.name, s, old, got.Settings, want.Settings)
				}
			}
		}
	}
}
