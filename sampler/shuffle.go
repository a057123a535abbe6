package sampler

import (
	"math/bits"
	"sync/atomic"
)

// shuffle permutes the R disjoint windows, in another way in each epoch of R rows, by an alternating Feistel network with cycle
// walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Any row takes the same little memory and time.
type shuffle struct {
	windows     *windows
	key         [2]uint64 // as in random
	n           uint64    // R
	shift       uint      // bits of the right half of a number in the network
	left, right uint64    // masks of the halves
	last        atomic.Pointer[epochKeys]
}

// epochKeys are the words of Philox4x64-10 at counters (epoch, 0, 0, 1), (epoch, 1, 0, 1) and (epoch, 2, 0, 1), which
// random never uses. The last ones are kept: most reads are of the epoch of the read before, and to draw the keys costs more than
// the network.
type epochKeys struct {
	epoch uint64
	k     [12]uint64 // of the rounds, of the coin toss, and one unused
}

// All R! orders of a small R must be equally likely. With this many rounds no bias can be measured in halves of 4 bits; in halves
// of one bit some bias is left even after 24 rounds, so a number has 8 bits at least.
const (
	rounds    = 10
	leastBits = 8
)

func newShuffle(key [2]uint64, w *windows) *shuffle {
	n := uint64(w.disjoint)
	b := uint(max(bits.Len64(n-1), leastBits))
	shift := b - b/2
	return &shuffle{windows: w, key: key, n: n, shift: shift, left: 1<<(b/2) - 1, right: 1<<shift - 1}
}

func (o *shuffle) start(row uint64) int64 {
	return o.windows.disjointAt(int64(o.permute(row/o.n, row%o.n)))
}

// permute is the i-th window of an epoch.
func (o *shuffle) permute(epoch, i uint64) uint64 {
	k := o.keys(epoch)
	for {
		left, right := i>>o.shift, i&o.right
		for r := 0; r < rounds; r += 2 {
			left ^= mix(right^k[r]) & o.left
			right ^= mix(left^k[r+1]) & o.right
		}
		if i = left<<o.shift | right; i < 2 { // a coin toss: the rounds alone make only even permutations
			i ^= k[rounds] & 1
		}
		if i < o.n {
			return i
		}
	}
}

// inverse is the index of a window in an epoch.
func (o *shuffle) inverse(epoch, window uint64) uint64 {
	k, i := o.keys(epoch), window
	for {
		if i < 2 {
			i ^= k[rounds] & 1
		}
		left, right := i>>o.shift, i&o.right
		for r := rounds - 2; r >= 0; r -= 2 {
			right ^= mix(left^k[r+1]) & o.right
			left ^= mix(right^k[r]) & o.left
		}
		if i = left<<o.shift | right; i < o.n {
			return i
		}
	}
}

func (o *shuffle) keys(epoch uint64) [12]uint64 {
	if e := o.last.Load(); e != nil && e.epoch == epoch {
		return e.k
	}
	e := &epochKeys{epoch: epoch}
	for i := range uint64(3) {
		block := philox4x64([4]uint64{epoch, i, 0, 1}, o.key)
		copy(e.k[4*i:], block[:])
	}
	o.last.Store(e)
	return e.k
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
