package sampler

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"sync/atomic"
)

// An order is a pure function from a row's number in its source to the row's start. It is safe for
// concurrent use.
type order interface {
	start(row uint64) int64
}

// newOrder returns the order of a source. The name in its key is "train" for split train, "train/0"
// for source 0 of a mixture, and "train/0/host3" if hosts have shares. Names of splits contain no
// slash.
func newOrder(s Settings, source, host int, share hostShare) (order, error) {
	name := s.Name
	if s.mixed() {
		name = fmt.Sprintf("%s/%d", s.Name, source)
	}
	if s.ShuffleBlock > 0 {
		name = fmt.Sprintf("%s/host%d", name, host)
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	key := [2]uint64{s.Seed, h.Sum64()}
	switch s.Order {
	case Sequential:
		return &epochOrder{share, sequential{}}, nil
	case Shuffle:
		if share.runLen > 0 {
			return &epochOrder{share, newRunShuffle(key, uint64(share.windows), uint64(share.runLen))}, nil
		}
		return &epochOrder{share, &shuffle{newFeistel(key, uint64(share.windows))}}, nil
	case Torch, Torch26:
		return newTorch(s, share.starts)
	}
	return &random{share.starts, key}, nil
}

// An epochOrder takes every window of a host's share once per epoch.
type epochOrder struct {
	share       hostShare
	permutation permutation
}

func (o *epochOrder) start(row uint64) int64 {
	n := uint64(o.share.windows)
	return o.share.windowStart(int64(o.permutation.permute(row/n, row%n)))
}

// A permutation maps the rows of each epoch one-to-one to windows. It is safe for concurrent use.
type permutation interface {
	// permute returns the window of a row; both count from 0 in the epoch.
	permute(epoch, row uint64) (window uint64)

	// inverse returns the row of a window.
	inverse(epoch, window uint64) (row uint64)
}

type sequential struct{}

func (sequential) permute(_, row uint64) uint64 { return row }

func (sequential) inverse(_, window uint64) uint64 { return window }

// A shuffle permutes all windows at once.
type shuffle struct{ feistel }

func (s *shuffle) permute(epoch, row uint64) uint64 { return s.apply(epoch, 0, row) }

func (s *shuffle) inverse(epoch, window uint64) uint64 { return s.invert(epoch, 0, window) }

// A runShuffle permutes the R windows (or rows of documents) of a share, so that successive rows
// come from only a few runs, and thus from a few cache blocks or groups of documents. In each
// epoch, it starts at a random window, treats the windows as a ring, and cuts them into runs. It
// shuffles the runs, and then the rows within each pool of mixedRuns runs.
type runShuffle struct {
	n        uint64 // R
	runLen   uint64
	runs     feistel // permutes the full runs; a shorter one stays last
	fullPool feistel
	lastPool feistel // permutes the last pool, which may be shorter
}

// mixedRuns is the number of runs in a pool. A source with no more runs is shuffled as a whole.
const mixedRuns = 16

func newRunShuffle(key [2]uint64, r, runLen uint64) *runShuffle {
	runLen = min(runLen, r)
	pool := min(mixedRuns*runLen, r)
	last := r - (r-1)/pool*pool
	return &runShuffle{r, runLen, newFeistel(key, r/runLen), newFeistel(key, pool), newFeistel(key, last)}
}

func (s *runShuffle) permute(epoch, i uint64) uint64 {
	pool := i / s.fullPool.n
	i = pool*s.fullPool.n + s.poolPermutation(pool).apply(epoch, pool+1, i%s.fullPool.n)
	if run := i / s.runLen; run < s.runs.n {
		i = s.runs.apply(epoch, 0, run)*s.runLen + i%s.runLen
	}
	return (i + s.offset(epoch)) % s.n
}

func (s *runShuffle) inverse(epoch, row uint64) uint64 {
	i := (row + s.n - s.offset(epoch)) % s.n
	if run := i / s.runLen; run < s.runs.n {
		i = s.runs.invert(epoch, 0, run)*s.runLen + i%s.runLen
	}
	pool := i / s.fullPool.n
	return pool*s.fullPool.n + s.poolPermutation(pool).invert(epoch, pool+1, i%s.fullPool.n)
}

func (s *runShuffle) poolPermutation(pool uint64) *feistel {
	if (pool+1)*s.fullPool.n <= s.n {
		return &s.fullPool
	}
	return &s.lastPool
}

// offset returns the first window of an epoch.
func (s *runShuffle) offset(epoch uint64) uint64 {
	keys := s.runs.keys(epoch, 0)
	first, _ := bits.Mul64(keys[rounds+1], s.n)
	return first
}

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

// A random draws starts uniformly: row s from the first word of Philox4x64-10 at counter (s, 0, 0,
// 0) that Lemire's method accepts ("Fast Random Integer Generation in an Interval", 2019). If it
// rejects all four, those at (s, 1, 0, 0) follow, and so on.
type random struct {
	starts *starts
	key    [2]uint64 // seed, and FNV-1a-64 of a name; see newOrder
}

func (r *random) start(row uint64) int64 {
	n := uint64(r.starts.count)
	threshold := -n % n // 2^64 mod n
	for attempt := uint64(0); ; attempt++ {
		for _, w := range philox4x64([4]uint64{row, attempt}, r.key) {
			if start, low := bits.Mul64(w, n); low >= threshold {
				return r.starts.nth(int64(start))
			}
		}
	}
}

// philox4x64 is Philox4x64-10 from Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy
// as 1, 2, 3" (2011).
func philox4x64(c [4]uint64, key [2]uint64) [4]uint64 {
	for range 10 {
		hi0, lo0 := bits.Mul64(0xD2E7470EE14C6C93, c[0])
		hi1, lo1 := bits.Mul64(0xCA5A826395121157, c[2])
		c = [4]uint64{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += 0x9E3779B97F4A7C15
		key[1] += 0xBB67AE8584CAA73B
	}
	return c
}
