package sampler

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
)

var allOrders = []Order{Random, Shuffle, Sequential, Torch, Torch26}

// A corpus is sources of files of so many tokens, and how they are mixed.
type corpus struct {
	name    string
	sources [][]int
	weights []float64
	join    bool
}

var corpora = []corpus{
	{"one file", [][]int{{51}}, nil, false},
	{"one window", [][]int{{5}}, nil, false},
	{"a file that ends with a window", [][]int{{41}}, nil, false},
	{"files", [][]int{{26, 5, 33}}, nil, false},
	{"joined", [][]int{{26, 2, 33}}, nil, true},
	{"mixed", [][]int{{26, 17}, {9}}, []float64{3, 1}, false},
	{"mixed and joined", [][]int{{26, 3}, {9, 9}, {6}}, []float64{0.5, 0.2, 0.3}, true},
}

// open makes sources of tokens of 4 bytes, each of which is its position among those of all sources.
func (c corpus) open(t testing.TB) []Source {
	t.Helper()
	return openSources(t, sourceFiles(t, 4, c.sources...), cache.Options{DType: array.Uint32, Join: c.join, Access: cache.Map})
}

// has reports whether an order can draw from the corpus.
func (c corpus) has(o Order) bool {
	return o != Torch && o != Torch26 || len(c.sources) == 1 && (c.join || len(c.sources[0]) == 1)
}

// A sighting is a token in a batch.
type sighting struct {
	k              uint64
	rank, j, index int
}

func sorted(all []sighting) []sighting {
	slices.SortFunc(all, func(a, b sighting) int {
		return cmp.Or(cmp.Compare(a.k, b.k), cmp.Compare(a.rank, b.rank), cmp.Compare(a.j, b.j), cmp.Compare(a.index, b.index))
	})
	return all
}

// sightings are all of the first epochs, by the epoch of the row's source and the token, as the batches of ranks show them.
func sightings(t testing.TB, ranks []*Sequence, epochs uint64) map[uint64]map[int64][]sighting {
	t.Helper()
	seen := map[uint64]map[int64][]sighting{}
	past := map[int]bool{} // sources whose first epochs are over
	q := ranks[0]
	for k := uint64(0); len(past) < len(q.Weights); k++ {
		for _, q := range ranks {
			batch := rows(read(t, q, k)[:q.Batch().MainBytes()], q.BlockSize)
			for j := range q.BatchSize {
				epoch := q.Epoch(k, j)
				if epoch >= epochs {
					source, _ := q.Start(k, j)
					past[source] = true
				}
				if seen[epoch] == nil {
					seen[epoch] = map[int64][]sighting{}
				}
				x, y := batch[j], batch[q.BatchSize+j]
				for index, token := range append(slices.Clone(x), y[len(y)-1]) {
					seen[epoch][token] = append(seen[epoch][token], sighting{k, q.Rank, j, index})
				}
			}
		}
	}
	return seen
}

func find(t testing.TB, q *Sequence, source int, pos int64, epoch uint64, progress func(int64, int64) bool) []Hit {
	t.Helper()
	hits, err := q.Find(source, pos, epoch, progress)
	must(t, err)
	return hits
}

// What Find says of any token is what looking through the batches of the epoch says.
func TestFindIsWhatTheBatchesShow(t *testing.T) {
	const epochs = 3
	for _, a := range corpora {
		tokens := a.open(t)
		for _, order := range allOrders {
			for _, world := range []int{1, 2} {
				if !a.has(order) {
					continue
				}
				var ranks []*Sequence
				for rank := range world {
					q, err := New(tokens, Settings{Split: "train", BatchSize: 3, BlockSize: 4, DType: array.Int64, Layout: XY, Order: order,
						Seed: 7, Rank: rank, World: world, Weights: a.weights})
					must(t, err)
					ranks = append(ranks, q)
				}
				for _, q := range ranks {
					look := ranks
					if order == Torch || order == Torch26 {
						look = []*Sequence{q} // a rank knows only its own rows
					}
					want := sightings(t, look, epochs)
					for epoch := range uint64(epochs) {
						for pos := range total(tokens) {
							var got []sighting
							source, at := locate(tokens, pos)
							for _, f := range find(t, q, source, at, epoch, func(int64, int64) bool { return true }) {
								k, rank, j := q.BatchOf(f.Row)
								got = append(got, sighting{k, rank, j, f.Index})
							}
							if want := sorted(want[epoch][pos]); !slices.Equal(sorted(got), want) {
								t.Fatalf("%s, %s, rank %d of %d: token %d is found in epoch %d at %v, the batches have it at %v",
									a.name, order, q.Rank, world, pos, epoch, got, want)
							}
						}
					}
				}
			}
		}
	}
}

// In the last epochs that there are batches for, what is found is there, and in a batch that has a number.
func TestFindAtTheEnd(t *testing.T) {
	all := func(int64, int64) bool { return true }
	for _, a := range corpora {
		tokens := a.open(t)
		for _, world := range []int{1, 1 << 22} { // the number of the last row is then 2^64-1
			for _, order := range []Order{Random, Shuffle, Sequential} {
				s := Settings{BatchSize: 4, BlockSize: 4, DType: array.Int64, Layout: XY, Order: order, World: world, Weights: a.weights}
				q, err := New(tokens, s)
				must(t, err)
				pos := int64(2)
				end := uint64(0)
				for step := uint64(1) << 63; step > 0; step /= 2 { // the last epoch that has it, or for random one of the last
					if end+step != 0 && len(find(t, q, 0, pos, end+step, all)) > 0 {
						end += step
					}
				}
				if end == 0 && len(find(t, q, 0, pos, 0, all)) == 0 {
					t.Fatalf("%s, %s: token %d is never found", a.name, order, pos)
				}
				for _, epoch := range []uint64{end - 1, end} {
					for _, f := range find(t, q, 0, pos, epoch, all) {
						k, rank, j := q.BatchOf(f.Row)
						if k >= MaxBatches {
							t.Fatalf("%s, %s, world %d: token %d in epoch %d is in batch %d", a.name, order, world, pos, epoch, k)
						}
						s.Rank = rank
						of, err := q.With(s)
						must(t, err)
						if source, start := of.Start(k, j); source != 0 || start+int64(f.Index) != pos || of.Epoch(k, j) != epoch {
							t.Errorf("%s, %s, world %d: batch %d of rank %d has not token %d at row %d, index %d, in epoch %d",
								a.name, order, world, k, rank, pos, j, f.Index, epoch)
						}
					}
				}
				for _, epoch := range []uint64{1 << 62, 1 << 63, 1<<64 - 1} {
					if finds := find(t, q, 0, pos, epoch, all); len(finds) > 0 && epoch > end {
						t.Errorf("%s, %s, world %d: found in epoch %d at %v", a.name, order, world, epoch, finds)
					}
				}
			}
		}
	}
}

// A search that may take long asks whether to go on, whichever rows it looks at.
func TestFindStops(t *testing.T) {
	paths := files(t, 4, 200_000)
	for _, order := range []Order{Random, Torch} {
		for rank := range 2 {
			q := sequence(t, paths, cache.Options{DType: array.Uint32}, Settings{BatchSize: 1, BlockSize: 1, Order: order, Rank: rank, World: 2})
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

// A sequence under other settings is the one that New makes of the tokens, whatever it was before.
func TestWithIsNew(t *testing.T) {
	changes := []func(*Settings){
		func(*Settings) {},
		func(s *Settings) { s.BatchSize, s.Seed = 5, 8 },
		func(s *Settings) { s.BlockSize, s.Split = 3, "val" },
		func(s *Settings) { s.DType, s.Layout = Native, WholeRows },
		func(s *Settings) { s.Order, s.Rank, s.World = Shuffle, 2, 3 },
		func(s *Settings) { s.Order = Sequential },
		func(s *Settings) { s.Order = Torch26 },
		func(s *Settings) { s.Order, s.TorchState = Torch, torchState(t) },
	}
	for _, a := range corpora {
		tokens := a.open(t)
		base := Settings{Split: "train", BatchSize: 3, BlockSize: 4, DType: array.Int64, Layout: XY, Order: Random, Seed: 7, World: 1, Weights: a.weights}
		q, err := New(tokens, base)
		must(t, err)
		for _, before := range changes {
			for _, change := range changes {
				old, s := base, base
				before(&old)
				if change(&s); !a.has(old.Order) || !a.has(s.Order) {
					continue
				}
				from, err := q.With(old)
				must(t, err)
				got, err := from.With(s)
				must(t, err)
				want, err := New(tokens, s)
				must(t, err)
				if !reflect.DeepEqual(got.Settings, want.Settings) || !bytes.Equal(read(t, got, 2), read(t, want, 2)) {
					t.Fatalf("%s: %+v of %+v are %+v, and New's %+v, or their batches differ", a.name, s, old, got.Settings, want.Settings)
				}
			}
		}
	}
}

func TestWithRefusesWhatNewRefuses(t *testing.T) {
	for _, a := range corpora {
		tokens := a.open(t)
		base := Settings{Split: "train", BatchSize: 3, BlockSize: 4, DType: array.Uint16, Layout: XY, Order: Random, World: 1,
			Weights: a.weights}
		q, err := New(tokens, base)
		must(t, err)
		for _, change := range []func(*Settings){
			func(s *Settings) { s.BlockSize = 100 },
			func(s *Settings) { s.Order = Torch },
			func(s *Settings) { s.Order, s.TorchState = Torch26, []byte("no state") },
			func(s *Settings) { s.Order, s.TorchState, s.World = Torch, torchState(t), 2 },
		} {
			s := base
			change(&s)
			_, want := New(tokens, s)
			if _, got := q.With(s); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %+v: error %v, of New %v", a.name, s, got, want)
			}
		}
	}
}
