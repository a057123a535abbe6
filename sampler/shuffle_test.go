package sampler

import (
	"math/rand/v2"
	"testing"
)

// shuffleOrder returns the order of a split with n windows.
func shuffleOrder(t testing.TB, split string, seed uint64, n int64) *epochs {
	t.Helper()
	return ordered(t, Settings{Name: split, Order: Shuffle, Seed: seed}, startsOf(t, n)).(*epochs)
}

// The expected windows come from an independent implementation with Python's integers.
func TestShuffleKnownAnswers(t *testing.T) {
	const ones = 1<<64 - 1
	for _, test := range []struct {
		split string
		seed  uint64
		n     int64
		epoch uint64
		want  []int64 // first windows of the epoch
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
		o := shuffleOrder(t, test.split, test.seed, test.n)
		for i, want := range test.want {
			if got := o.start(test.epoch*uint64(o.n) + uint64(i)); got != want {
				t.Errorf("%q, %d, epoch %d: window %d of %d is %d, want %d", test.split, test.seed, test.epoch, i, o.n, got, want)
			}
		}
	}
}

// An epoch is a permutation of the windows in a new order, and inverse inverts it.
func TestShufflePermutes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range int64(attempts(300, 1500)) {
		o := &shuffle{newPermutations([2]uint64{1337, 42}, uint64(n+1))}
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
		o := &shuffle{newPermutations([2]uint64{r.Uint64(), r.Uint64()}, 1+r.Uint64N(1<<r.IntN(41)))}
		epoch, i := r.Uint64(), r.Uint64N(o.n)
		if w := o.permute(epoch, i); w >= o.n || o.inverse(epoch, w) != i {
			t.Fatalf("%d windows, epoch %d: number %d is window %d, which is number %d", o.n, epoch, i, w, o.inverse(epoch, w))
		}
	}
}
