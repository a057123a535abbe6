package sampler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"batchfs/internal/wait"
)

// shuffled is the order of a split's n windows.
func shuffled(t testing.TB, split string, seed uint64, n int64) *shuffle {
	t.Helper()
	return ordered(t, Settings{Split: split, Order: Shuffle, Seed: seed}, room(t, n)).(*shuffle)
}

// The windows come from an implementation in Python's integers that shares nothing with this one.
func TestShuffleKnownAnswers(t *testing.T) {
	const ones = 1<<64 - 1
	for _, test := range []struct {
		split string
		seed  uint64
		n     int64
		epoch uint64
		want  []int64 // the first windows of the epoch
	}{
		{"train", 1337, 1, 0, []int64{0}},
		{"train", 1337, 2, 0, []int64{1, 0}},
		{"train", 1337, 2, 1, []int64{1, 0}},
		{"train", 1337, 5, 0, []int64{2, 0, 4, 1, 3}},
		{"train", 1337, 10, 0, []int64{2, 0, 5, 7, 3, 4, 6, 9, 1, 8}},
		{"train", 1337, 10, 1, []int64{7, 3, 1, 0, 9, 6, 8, 2, 4, 5}},
		{"val", 1337, 10, 0, []int64{0, 3, 6, 5, 7, 1, 4, 9, 2, 8}},
		{"train", 1338, 10, 0, []int64{9, 3, 1, 8, 4, 5, 6, 0, 7, 2}},
		{"train", 1337, 256, 0, []int64{99, 130, 128, 74, 90, 24, 72, 96, 17, 78}},
		{"train", 1337, 257, 0, []int64{255, 51, 200, 115, 70, 240, 216, 94, 6, 84}},
		{"", 0, 1000003, 0, []int64{76445, 860235, 672389, 446138}},
		{"train", ones, 1 << 40, 1<<24 - 1, []int64{702485485474, 964998461312, 534643137432, 435435759830}},
		{"train", ones, 1<<62 - 1, 4, []int64{1681367717487248258, 4252712232053735931, 810251074702679481}},
		{"val", 1, 1<<33 + 1, 1<<31 - 1, []int64{575662762, 772974724, 4425775092, 1260125050}},
	} {
		o := shuffled(t, test.split, test.seed, test.n)
		for i, want := range test.want {
			if got := o.start(test.epoch*o.n + uint64(i)); got != want {
				t.Errorf("%q, %d, epoch %d: window %d of %d is %d, want %d", test.split, test.seed, test.epoch, i, o.n, got, want)
			}
		}
	}
}

func TestShufflePermutes(t *testing.T) {
	for _, epoch := range []uint64{0, 1<<40 + 1} {
		t.Run(fmt.Sprint(epoch), func(t *testing.T) {
			t.Parallel()
			for n := range int64(5000) {
				o := newShuffle([2]uint64{1337, 42}, room(t, n+1))
				seen := make([]bool, o.n)
				for i := range o.n {
					w := o.permute(epoch, i)
					if w >= o.n || seen[w] || i%8 == 0 && o.inverse(epoch, w) != i {
						t.Fatalf("%d windows: number %d is window %d, which is number %d", o.n, i, w, o.inverse(epoch, w))
					}
					seen[w] = true
				}
			}
		})
	}
}

// What has an inverse gives no window twice.
func TestShuffleInverts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		o := newShuffle([2]uint64{rng.Uint64(), rng.Uint64()}, room(t, 1+rng.Int64N(1<<rng.IntN(41))))
		epoch := rng.Uint64()
		for range 1000 {
			i := rng.Uint64N(o.n)
			if w := o.permute(epoch, i); w >= o.n || o.inverse(epoch, w) != i {
				t.Fatalf("%d windows, epoch %d: number %d is window %d, which is number %d", o.n, epoch, i, w, o.inverse(epoch, w))
			}
		}
	}
}

func TestShuffleCoversEachWindowOnceAnEpoch(t *testing.T) {
	for _, join := range []bool{false, true} {
		runs, _ := rooms(join, 100, 4, 8, 81)
		w, err := windowsIn(runs, 3)
		must(t, err)
		var want []int64
		for _, run := range runs {
			for i := int64(0); i+3 < run.Len; i += 3 { // the next token of each window is in the same file
				want = append(want, run.Start+i)
			}
		}
		o := newShuffle([2]uint64{1337, 42}, w)
		for _, share := range []struct{ b, world int }{{1, 1}, {4, 1}, {3, 2}, {7, 5}, {64, 1}, {50, 3}} {
			const epochs = 5
			var got [epochs + 1][]int64
			global := uint64(share.b * share.world)
			for rank := range share.world {
				q := &Sequence{Settings: Settings{BatchSize: share.b, Rank: rank, World: share.world}}
				for k := range (epochs*o.n + global - 1) / global {
					for j := range share.b {
						epoch := min(q.Row(k, j)/o.n, epochs)
						got[epoch] = append(got[epoch], o.start(q.Row(k, j)))
					}
				}
			}
			for epoch, got := range got[:epochs] {
				if slices.Sort(got); !slices.Equal(got, want) {
					t.Errorf("join %v, B %d, W %d: epoch %d has %v, want %v", join, share.b, share.world, epoch, got, want)
				}
			}
		}
	}
}

// Two orders of many windows agree about once; more than nine times in one of ten million pairs.
func TestShuffleDiffersByEpochSeedAndSplit(t *testing.T) {
	const n = 1000
	orders := map[string][n]int64{}
	for _, split := range []string{"train", "val"} {
		for seed := range uint64(3) {
			for _, epoch := range []uint64{0, 1, 1 << 40} {
				o, starts := shuffled(t, split, seed, n), [n]int64{}
				for i := range starts {
					starts[i] = o.start(epoch*n + uint64(i))
				}
				name := fmt.Sprintf("%s, seed %d, epoch %d", split, seed, epoch)
				for other, theirs := range orders {
					same := 0
					for i := range starts {
						if starts[i] == theirs[i] {
							same++
						}
					}
					if same > 9 {
						t.Errorf("%s and %s agree %d times", name, other, same)
					}
				}
				orders[name] = starts
			}
		}
	}
}

// inversions are, for each row of an epoch, how many later rows have a smaller window.
func inversions(o *shuffle, epoch uint64) []uint64 {
	windows, later := make([]uint64, o.n), make([]uint64, o.n)
	for i := range windows {
		windows[i] = o.permute(epoch, uint64(i))
		for j := range i {
			if windows[i] < windows[j] {
				later[j]++
			}
		}
	}
	return later
}

// whole numbers the n! orders that an epoch can have.
func whole(o *shuffle, epoch uint64) (number uint64) {
	for i, later := range inversions(o, epoch) {
		number = number*(o.n-uint64(i)) + later
	}
	return number
}

func parity(o *shuffle, epoch uint64) (odd uint64) {
	for _, later := range inversions(o, epoch) {
		odd ^= later & 1
	}
	return odd
}

func first(o *shuffle, epoch uint64) uint64 { return o.permute(epoch, 0) }

// Chi-square of what so many epochs fall into, in classes that are equally likely.
func TestShuffleIsUniform(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	const tries = 20_000
	for _, test := range []struct {
		name    string
		n       int64
		epochs  uint64
		classes uint64
		class   func(o *shuffle, epoch uint64) uint64
		limit   float64 // of chi-square with classes-1 degrees of freedom: one in a thousand is above
	}{
		{"whole order", 3, tries, 6, whole, 20.5},
		{"whole order", 4, tries, 24, whole, 49.7},
		{"whole order", 5, tries, 120, whole, 172.4},
		{"parity", 256, tries / 10, 2, parity, 10.8},
		{"first window", 100, tries, 100, first, 148.2},
		{"hundredth of the first window", 100 << 30, tries, 100, func(o *shuffle, epoch uint64) uint64 {
			return first(o, epoch) >> 30
		}, 148.2},
		{"first two windows", 12, tries, 12 * 11, func(o *shuffle, epoch uint64) uint64 {
			w, next := o.permute(epoch, 0), o.permute(epoch, 1)
			if next > w {
				next--
			}
			return w*11 + next
		}, 186.8},
		{"way from window 0 to window 1", 101, tries, 100, func(o *shuffle, epoch uint64) uint64 {
			return (o.inverse(epoch, 1)-o.inverse(epoch, 0)+101)%101 - 1
		}, 148.2},
		{"first window less the last epoch's", 101, tries, 101, func(o *shuffle, epoch uint64) uint64 {
			return (first(o, epoch+1) - first(o, epoch) + 101) % 101
		}, 149.4},
	} {
		w, seen := room(t, test.n), make([]float64, test.classes)
		for epoch := range test.epochs {
			o := newShuffle([2]uint64{epoch % 10, 42}, w)
			seen[test.class(o, epoch)]++
		}
		chi, expected := 0.0, float64(test.epochs)/float64(test.classes)
		for _, n := range seen {
			chi += (n - expected) * (n - expected) / expected
		}
		if chi > test.limit {
			t.Errorf("%s of %d windows: chi-square %.1f is above %.1f", test.name, test.n, chi, test.limit)
		}
	}
}

// Readers may be in several epochs at once.
func TestShuffleIsConcurrent(t *testing.T) {
	const n = 100
	o := newShuffle([2]uint64{1337, 42}, room(t, n))
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			for row := uint64(reader * n / 2); row < 20*n; row++ {
				if got, want := o.start(row), newShuffle(o.key, o.windows).start(row); got != want {
					t.Errorf("row %d starts at %d, want %d", row, got, want)
				}
			}
		})
	}
	wait.End(t, "the readers", readers.Wait)
}

func BenchmarkShuffle(b *testing.B) {
	for _, n := range []int64{1 << 30, 1<<30 + 1, 100} { // one try of the network a row, two, two and a half
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			o := newShuffle([2]uint64{1337, 42}, room(b, n))
			for row := uint64(0); b.Loop(); row++ {
				o.start(row)
			}
		})
	}
}
