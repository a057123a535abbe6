package sampler

import (
	"math/bits"
	"sync/atomic"
)

// A shuffle permutes all windows at once.
type shuffle struct{ feistel }

func (s *shuffle) permute(epoch, row uint64) uint64 { return s.apply(epoch, 0, row) }

func (s *shuffle) inverse(epoch, window uint64) uint64 { return s.invert(epoch, 0, window) }

// A feistel permutes the numbers below n, differently in each epoch and stream: an alternating
// Feistel network with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
// 2002). It is safe for concurrent use.
type feistel struct {
	key                 [2]uint64 // same as in random
	n                   uint64
	rightBits           uint
	leftMask, rightMask uint64
	recentKeys          *atomic.Pointer[streamKeys]
}

// streamKeys are the words of Philox4x64-10 at counters (epoch, 0, stream, 1) to (epoch, 2, stream,
// 1), which random never uses. The latest ones are cached, because they cost more than the network,
// and most reads stay in one epoch.
type streamKeys struct {
	epoch, stream uint64
	words         [12]uint64 // keys of the rounds, the coin toss and runShuffle.offset
}

// For a small R, all R! orders must be equally likely. With 10 rounds, halves of 4 bits show no
// bias. Halves of 1 bit remain biased even after 24 rounds, so a number has at least 8 bits.
const (
	rounds  = 10
	minBits = 8
)

func newFeistel(key [2]uint64, n uint64) feistel {
	b := uint(max(bits.Len64(n-1), minBits))
	shift := b - b/2
	return feistel{key: key, n: n, rightBits: shift, leftMask: 1<<(b/2) - 1, rightMask: 1<<shift - 1, recentKeys: new(atomic.Pointer[streamKeys])}
}

// apply returns the i-th number of a permutation.
func (f *feistel) apply(epoch, stream, i uint64) uint64 {
	k := f.keys(epoch, stream)
	for {
		left, right := i>>f.rightBits, i&f.rightMask
		for r := 0; r < rounds; r += 2 {
			left ^= mix(right^k[r]) & f.leftMask
			right ^= mix(left^k[r+1]) & f.rightMask
		}
		// A coin toss may swap 0 and 1, because the rounds alone make only even permutations.
		if i = left<<f.rightBits | right; i < 2 {
			i ^= k[rounds] & 1
		}
		if i < f.n {
			return i
		}
	}
}

// invert is the inverse of apply.
func (f *feistel) invert(epoch, stream, i uint64) uint64 {
	k := f.keys(epoch, stream)
	for {
		if i < 2 {
			i ^= k[rounds] & 1
		}
		left, right := i>>f.rightBits, i&f.rightMask
		for r := rounds - 2; r >= 0; r -= 2 {
			right ^= mix(left^k[r+1]) & f.rightMask
			left ^= mix(right^k[r]) & f.leftMask
		}
		if i = left<<f.rightBits | right; i < f.n {
			return i
		}
	}
}

func (f *feistel) keys(epoch, stream uint64) [12]uint64 {
	if e := f.recentKeys.Load(); e != nil && e.epoch == epoch && e.stream == stream {
		return e.words
	}
	e := &streamKeys{epoch: epoch, stream: stream}
	for i := range uint64(3) {
		words := philox4x64([4]uint64{epoch, i, stream, 1}, f.key)
		copy(e.words[4*i:], words[:])
	}
	f.recentKeys.Store(e)
	return e.words
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
