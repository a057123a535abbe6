package sampler

import (
	"math/rand/v2"
	"testing"
)

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
