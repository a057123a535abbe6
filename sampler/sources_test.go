package sampler

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"batchfs/cache"
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
			o := cache.Options{Width: 2, Join: join, Access: cache.Pread}
			paths := sourceFiles(t, o.Width, lens...)
			tokens, err := cache.Open(paths, o)
			must(t, err)
			// What With keeps of this one must not depend on its settings.
			other := Settings{Split: "train", BatchSize: 1, BlockSize: 5, Order: Random, World: 1, Weights: weights}
			base, err := New(tokens, other)
			must(t, err)
			for _, order := range []Order{Random, Shuffle, Sequential} {
				for world, batchSize := range map[int]int{1: 4, 2: 3, 5: 1} {
					name := fmt.Sprintf("%v, join %v, %s, world %d", weights, join, order, world)
					s := Settings{Split: "train", BatchSize: batchSize, BlockSize: blockSize, DType: Int64, Layout: WholeRows,
						Order: order, Seed: 3, World: world}
					var alone []*Sequence
					for i := range weights {
						tokens, err := cache.Open(paths[i:i+1], o)
						must(t, err)
						only := s
						only.Split, only.BatchSize, only.World = fmt.Sprintf("train/%d", i), 1, 1
						q, err := New(tokens, only)
						must(t, err)
						alone = append(alone, q)
					}
					var ranks []*Sequence
					for s.Rank = range world {
						q, err := base.With(s)
						must(t, err)
						ranks = append(ranks, q)
					}
					checkMixed(t, name, count, ranks, alone)
				}
			}
		}
	}
}

func checkMixed(t *testing.T, name string, count int, ranks, alone []*Sequence) {
	t.Helper()
	var (
		begins []int64 // of the sources
		next   int64
		have   = make([]int, len(alone))
		seen   = make([]map[int64]bool, len(alone)) // starts of the epoch
		n      = 0                                  // the global number of a row
	)
	for i, q := range alone {
		begins, next = append(begins, next), next+q.tokens.Len()
		seen[i] = map[int64]bool{}
	}
	for k := uint64(0); n < count; k++ {
		for rank, q := range ranks {
			batch := read(t, q, k)
			size := len(batch) / q.BatchSize
			for j := range q.BatchSize {
				row := batch[j*size:][:size]
				start := rows(row, size/8)[0][0]
				source := len(begins) - 1
				for begins[source] > start {
					source--
				}
				index := have[source]
				if want := read(t, alone[source], uint64(index)); !bytes.Equal(row, want) {
					t.Fatalf("%s: rank %d, batch %d, row %d is % x, want row %d of source %d, % x",
						name, rank, k, j, row, index, source, want)
				}
				r := int(alone[source].RowsPerEpoch())
				if got := q.Row(k, j); got != uint64(n) || q.Start(k, j) != start || q.Epoch(k, j) != uint64(index/r) {
					t.Fatalf("%s: rank %d, batch %d, row %d is number %d, starts at %d in epoch %d; want %d, %d, %d",
						name, rank, k, j, got, q.Start(k, j), q.Epoch(k, j), n, start, index/r)
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

// A single source is no mixture: its rows are those of the split.
func TestOneSourceIsTheSplit(t *testing.T) {
	paths := files(t, 2, 1000, 500)
	tokens, err := cache.Open([][]string{paths}, cache.Options{Width: 2, Access: cache.Pread})
	must(t, err)
	for _, order := range []Order{Random, Shuffle, Sequential} {
		s := Settings{Split: "train", BatchSize: 4, BlockSize: 8, DType: Int64, Layout: XY, Order: order, World: 1}
		plain, err := New(tokens, s)
		must(t, err)
		s.Weights = []float64{0.3}
		weighted, err := New(tokens, s)
		must(t, err)
		for k := range uint64(50) {
			if !bytes.Equal(read(t, plain, k), read(t, weighted, k)) {
				t.Fatalf("%s: batch %d differs", order, k)
			}
		}
	}
}
