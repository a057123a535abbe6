package sampler

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"batchfs/cache/array"
	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

var must = require.NoError

func tokenWindow(size int) windowSpec { return (&Settings{BlockSize: size}).newWindowSpec() }

func windowStarts(runs []array.Extent, size int) (*starts, error) {
	return newStarts(runs, tokenWindow(size), new(windowRows), NewTables(defaultTableBytes))
}

// Files that are too short for a row change no start within the others, in any order.
func TestShortFilesHaveNoRows(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range attempts(100, 300) {
		size, long, all, isShort := 1+r.IntN(12), []int64(nil), []int64(nil), []bool(nil)
		for range 1 + r.IntN(8) {
			n := 1 + r.Int64N(int64(size))
			if isShort = append(isShort, r.IntN(2) == 0); !isShort[len(isShort)-1] {
				n = int64(size) + 1 + r.Int64N(50)
				long = append(long, n)
			}
			all = append(all, n)
		}
		with := stubSources(array.Uint16, all)
		for i := range all {
			with[0].Main.(*stubArray).extents[i].Matched = true
		}
		for _, order := range allOrders {
			s := Settings{Name: "train", BatchSize: 3, BlockSize: size, DType: array.Uint16, Layout: XY, Order: order, Seed: r.Uint64(), World: 1}
			got, err := New(with, s)
			if len(long) == 0 {
				if err == nil {
					t.Fatalf("files of %d tokens have rows of %d", all, size)
				}
				continue
			}
			if len(long) > 1 && (order == Torch || order == Torch26) {
				continue
			}
			must(t, err)
			want, err := New(stubSources(array.Uint16, long), s)
			must(t, err)
			if got.TooShort() != len(all)-len(long) || got.RowsPerEpoch() != want.RowsPerEpoch() || got.StartsOf(0) != want.StartsOf(0) {
				t.Fatalf("files of %d tokens, rows of %d: %d are too short, %d rows, %d starts", all, size, got.TooShort(), got.RowsPerEpoch(), got.StartsOf(0))
			}
			for k := range uint64(100) {
				for j := range 3 {
					start := rowStart(want, k, j) // and the short files before it
					for i, before := 0, int64(0); i < len(all) && (isShort[i] || before+all[i] <= start); i++ {
						if before += all[i]; isShort[i] {
							start += all[i]
						}
					}
					if got := rowStart(got, k, j); got != start {
						t.Fatalf("%s, files of %d tokens, rows of %d: row %d of batch %d begins at %d, want %d", order, all, size, j, k, got, start)
					}
				}
			}
		}
	}
}

func manyFiles(tables *Tables) Source {
	lens := make([]int64, 10_000)
	for i := range lens {
		lens[i] = 3000
	}
	source := stubSources(array.Uint16, lens)[0]
	source.Tables = tables
	return source
}

// Sequences of one block size share their windows, so one more sequence takes memory that does not
// depend on the number of files. Windows that no sequence uses are collected.
func TestSequencesShareTheirWindows(t *testing.T) {
	base := Settings{Name: "train", BatchSize: 12, BlockSize: 1024, DType: array.Uint16, Layout: XY, World: 1, Weights: []float64{1, 2}}
	first, err := New([]Source{manyFiles(nil), manyFiles(nil)}, base)
	must(t, err)
	byBlockSize := map[int]*Sequence{1024: first}
	sequences := []*Sequence{first}
	for i := range 100 {
		s := base
		s.Seed, s.World, s.Rank = uint64(i), 8, i%8
		s.BlockSize = []int{1024, 512, 2048}[i%3]
		s.Order = []Order{Random, Shuffle, Sequential}[i/3%3]
		s.Layout = []Layout{XY, Tokens}[i/9%2]
		q, err := sequences[(i*7)%len(sequences)].With(s)
		must(t, err)
		sequences = append(sequences, q)
		if byBlockSize[s.BlockSize] == nil {
			byBlockSize[s.BlockSize] = q
		}
		for n := range q.sources {
			if q.sources[n].starts != byBlockSize[s.BlockSize].sources[n].starts {
				t.Fatalf("sequence %d has windows of its own for source %d and block size %d", i, n, s.BlockSize)
			}
		}
	}
	if first.sources[0].starts == first.sources[1].starts {
		t.Error("two sources have the same windows")
	}
	clear(sequences)
	clear(byBlockSize)
	cache := first.sources[0].cache
	testwait.Until(t, "the windows of 1 block size are left", func() (any, bool) {
		runtime.GC()
		cache.mu.Lock()
		defer cache.mu.Unlock()
		left := 0
		for _, cached := range cache.cached {
			if cached.Value() != nil {
				left++
			}
		}
		return left, left == 1
	})
	same, err := first.With(base)
	must(t, err)
	if same.sources[0].starts != first.sources[0].starts {
		t.Error("windows that are in use were forgotten")
	}
}

func TestTablesAreBounded(t *testing.T) {
	const limit = 1 << 20
	tables := NewTables(limit)
	documents := documentSource(array.Uint32, randomDocuments(rand.New(rand.NewPCG(1, 1)), attempts(12, 40)*groupDocuments, 20))
	documents.Tables = tables
	s := Settings{Name: "train", BatchSize: 8, BlockSize: 16, DType: array.Uint32, Layout: XY, Order: Random, World: 1, Rows: Packed}
	packed, err := New([]Source{documents}, s)
	must(t, err)
	sequences := []*Sequence{packed}
	first, err := New([]Source{manyFiles(tables)}, Settings{BatchSize: 8, BlockSize: 1024, DType: Native, World: 1})
	must(t, err)
	for size := range 50 {
		q, err := first.With(Settings{BatchSize: 8, BlockSize: 1 + size, DType: Native, Order: []Order{Shuffle, Sequential}[size%2], World: 1})
		must(t, err)
		sequences = append(sequences, q)
	}
	var want []int64
	for _, q := range sequences {
		want = append(want, rowStart(q, 3, 5))
	}
	var most atomic.Int64
	var together sync.WaitGroup
	for range 4 {
		together.Go(func() {
			dst := make([]byte, packed.Batch().Bytes())
			for k := range uint64(attempts(3, 20)) {
				if err := packed.Read(dst, k, 0); err != nil {
					t.Error(err)
				}
				for i, q := range sequences {
					if got := rowStart(q, 3, 5); got != want[i] {
						t.Errorf("sequence %d: row 5 of batch 3 begins at %d, and did at %d", i, got, want[i])
					}
				}
				most.Store(max(most.Load(), tables.Bytes()))
			}
		})
	}
	testwait.End(t, "the readers", together.Wait)
	if n := most.Load(); n > limit || n < limit/4 {
		t.Errorf("tables took up to %d bytes, may take %d", n, limit)
	}
}
