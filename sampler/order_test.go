package sampler

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"batchfs/cache/array"
)

// startsOf returns n starts, with T = 1.
func startsOf(t testing.TB, n int64) *starts {
	t.Helper()
	w, err := windowStarts([]array.Extent{{Name: "train.bin", Len: n + 1}}, 1)
	must(t, err)
	return w
}

// random matches docs/orders.md, even if a third of all words is rejected.
func TestRandomIsLemireOverPhilox(t *testing.T) {
	two64 := new(big.Int).Lsh(big.NewInt(1), 64)
	for _, n := range []int64{1, 2, 3, 1000, 1 << 32, 3 << 61, 1<<64/3 + 1, 1<<63 - 2} {
		o := random{startsOf(t, n), [2]uint64{5, 7}}
		N, later := big.NewInt(n), 0
		threshold := new(big.Int).Mod(two64, N)
		want := func(row uint64) int64 {
			for again := uint64(0); ; again++ {
				for _, word := range philox4x64([4]uint64{row, again}, o.key) {
					high, low := new(big.Int).DivMod(new(big.Int).Mul(new(big.Int).SetUint64(word), N), two64, new(big.Int))
					if low.Cmp(threshold) >= 0 {
						return high.Int64()
					}
				}
				later++
			}
		}
		for row := range uint64(2000) {
			row -= 1000 // the first 1000 wrap around to the largest rows
			if got, want := o.start(row), want(row); got != want {
				t.Fatalf("n %d, row %d starts at %d, want %d", n, row, got, want)
			}
		}
		if n == 1<<64/3+1 && later < 10 { // 2000/81 are expected
			t.Errorf("n %d: only %d blocks were rejected whole", n, later)
		}
	}
}

func ordered(t testing.TB, s Settings, w *starts) order {
	t.Helper()
	o, err := newOrder(s, 0, 0, w.wholeShare())
	must(t, err)
	return o
}

func extentsOf(join bool, lens ...int64) (runs []array.Extent, total int64) {
	for i, n := range lens {
		runs = append(runs, array.Extent{Name: fmt.Sprintf("shard%d.bin", i), Start: total, Len: n})
		total += n
	}
	if join {
		runs = []array.Extent{{Name: "shard0.bin", Len: total}}
	}
	return runs, total
}

// Every epoch has each disjoint window once, and no row crosses a file.
func TestEpochsHaveEachWindowOnce(t *testing.T) {
	const epochs = 3
	for _, join := range []bool{false, true} {
		runs, _ := extentsOf(join, 100, 4, 8, 81)
		w, err := windowStarts(runs, 3)
		must(t, err)
		var want []int64
		for _, run := range runs {
			for i := int64(0); i+3 < run.Len; i += 3 { // the next token is in the file too
				want = append(want, run.Start+i)
			}
		}
		r := uint64(len(want))
		for _, name := range []Order{Shuffle, Sequential} {
			o := ordered(t, Settings{Order: name, Seed: 1337}, w)
			for _, share := range []struct{ b, world int }{{1, 1}, {4, 1}, {3, 2}, {7, 5}, {64, 1}, {50, 3}} {
				var got [epochs + 1][]int64
				global := uint64(share.b * share.world)
				for rank := range share.world {
					q := &Sequence{Settings: Settings{BatchSize: share.b, Rank: rank, World: share.world}}
					for k := range (epochs*r + global - 1) / global {
						for j := range share.b {
							epoch := min(q.Row(k, j)/r, epochs)
							got[epoch] = append(got[epoch], o.start(q.Row(k, j)))
						}
					}
				}
				for epoch, got := range got[:epochs] {
					if slices.Sort(got); !slices.Equal(got, want) {
						t.Errorf("join %v, %s, %+v: epoch %d has %v, want %v", join, name, share, epoch, got, want)
					}
				}
			}
		}
	}
}

func FuzzStart(f *testing.F) {
	f.Add(int64(2), int64(2), int64(2), int64(1), uint64(0), uint64(0), false, false)
	f.Add(int64(100), int64(7), int64(9), int64(6), uint64(1337), uint64(1<<64-1), false, true)
	f.Add(int64(1), int64(1), int64(1), int64(2), uint64(1337), uint64(5), true, false)
	f.Add(int64(1<<61), int64(1<<60), int64(1<<61), int64(1024), uint64(1<<63), uint64(1<<40), false, false)
	f.Add(int64(1<<61), int64(1<<60), int64(1<<61), int64(1<<60-1), uint64(1), uint64(12345), true, true)
	f.Fuzz(func(t *testing.T, a, b, c, size int64, seed, row uint64, join, inOrder bool) {
		const most = 1 << 61 // three of these are below 2^63
		if min(a, b, c, size) < 1 || max(a, b, c, size) > most {
			return
		}
		runs, _ := extentsOf(join, a, b, c)
		w, err := windowStarts(runs, int(size))
		short := slices.ContainsFunc(runs, func(r array.Extent) bool { return r.Len < size+1 })
		if (err != nil) != short {
			t.Fatalf("error %v for runs %v and T %d", err, runs, size)
		}
		if err != nil {
			return
		}
		s := Settings{Name: "train", Order: Random, Seed: seed}
		if inOrder {
			s.Order = Sequential
		}
		start := ordered(t, s, w).start(row)
		for _, r := range runs {
			if start >= r.Start && start+size < r.Start+r.Len && (!inOrder || (start-r.Start)%size == 0) {
				return
			}
		}
		t.Errorf("row %d starts at %d, T %d, in none of %v", row, start, size, runs)
	})
}

func TestShufflePermutes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range int64(attempts(300, 1500)) {
		o := &shuffle{newFeistel([2]uint64{1337, 42}, uint64(n+1))}
		seen := make([]bool, o.n)
		epoch, same := r.Uint64(), 0
		for i := range o.n {
			w := o.permute(epoch, i)
			if w >= o.n || seen[w] || o.inverse(epoch, w) != i {
				t.Fatalf("%d windows: number %d is window %d, which is number %d", o.n, i, w, o.inverse(epoch, w))
			}
			seen[w] = true
			if w == o.permute(epoch+1, i) {
				same++
			}
		}
		if same > 9 { // the mean is 1; more than 9 happens once in ten million pairs
			t.Errorf("%d windows: two epochs have %d at the same place", o.n, same)
		}
	}
	for range 200 {
		o := &shuffle{newFeistel([2]uint64{r.Uint64(), r.Uint64()}, 1+r.Uint64N(1<<r.IntN(41)))}
		epoch, i := r.Uint64(), r.Uint64N(o.n)
		if w := o.permute(epoch, i); w >= o.n || o.inverse(epoch, w) != i {
			t.Fatalf("%d windows, epoch %d: number %d is window %d, which is number %d", o.n, epoch, i, w, o.inverse(epoch, w))
		}
	}
}
