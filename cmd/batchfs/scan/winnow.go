package scan

import (
	"cmp"
	"math"
	"slices"
)

// A winnower picks window hashes of a stream of numbers, so that two streams that share 2w-1
// consecutive numbers share a hash, at whatever offsets. A window hash is the hash of w consecutive
// numbers. Of any w consecutive ones, the winnower picks at least one. Streams that share a hash
// share w numbers, unless 64-bit hashes collide. Numbers that only repeat may get no hash. A
// winnower belongs to one goroutine.
//
// The algorithm is from Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document
// Fingerprinting" (2003): it picks the smallest of any w consecutive hashes, which are computed as
// by Karp and Rabin. To be fast, it ignores large hashes: on average, 64 of w hashes are small, and
// the probability that none is small is 1 in 10^27. It picks about 2 in w hashes of random numbers.
type winnower struct {
	w          int64    // power of two
	recent     []uint64 // last w numbers, each plus one; number i is at index i mod w
	hash       uint64   // hash of the last w numbers
	baseToW    uint64   // hashBase to the power of w
	hashOfOnes uint64   // hash of w ones
	maxHash    uint64   // larger hashes are ignored
	added      int64    // numbers added
	start      int64    // position of the first number

	// queue holds the candidates in order of position, each with a smaller hash than all after it;
	// the last picked hash may come first.
	queue  []windowHash
	picked int64 // position of the last picked hash
}

// A windowHash is the hash of the window that begins at position At.
type windowHash struct {
	Hash uint64
	At   int64
}

// hashBase is odd, so that the hash depends on every bit of every number.
const hashBase = 0x9e3779b97f4a7c15

func newWinnower(w, first int64) *winnower {
	z := &winnower{w: w, recent: make([]uint64, w), baseToW: 1, start: first, picked: -1}
	for range w {
		z.hashOfOnes = z.hashOfOnes*hashBase + 1
		z.baseToW *= hashBase
	}
	z.maxHash = math.MaxUint64 / uint64(max(w/64, 1))
	return z
}

// add adds numbers to the stream. It returns hashes with the newly picked ones appended.
func (z *winnower) add(numbers []uint64, hashes []windowHash) []windowHash {
	sum, n, last, mask := z.hash, z.added, z.recent, int64(len(z.recent)-1)
	for _, v := range numbers {
		v++
		sum = sum*hashBase + (v - last[n&mask]*z.baseToW)
		last[n&mask] = v
		n++
		// Windows of a single repeated number are ignored, because they are no evidence of a copy.
		if hash := (sum ^ sum>>32) * hashBase; hash <= z.maxHash && n >= z.w && sum != v*z.hashOfOnes {
			hashes = z.consider(windowHash{hash, z.start + n - z.w}, hashes)
		}
	}
	z.hash, z.added = sum, n
	return z.advance(z.start+n-z.w+1, hashes)
}

// consider adds a hash whose window begins after all candidates, and picks the best candidate.
func (z *winnower) consider(next windowHash, hashes []windowHash) []windowHash {
	hashes = z.advance(next.At, hashes)
	if len(z.queue) > 0 && z.queue[0].At <= next.At-z.w {
		z.queue = slices.Delete(z.queue, 0, 1)
	}
	// If hashes are equal, the last one stays, so that periodic numbers yield few hashes. But one
	// that was already picked is not replaced.
	for n := len(z.queue); n > 0; n = len(z.queue) {
		if back := z.queue[n-1]; back.Hash < next.Hash || back.Hash == next.Hash && back.At == z.picked {
			break
		}
		z.queue = z.queue[:n-1]
	}
	z.queue = append(z.queue, next)
	return z.pick(hashes)
}

// advance removes the candidates that begin more than w numbers before position at, and picks the
// best of the rest.
func (z *winnower) advance(at int64, hashes []windowHash) []windowHash {
	for len(z.queue) > 0 && z.queue[0].At < at-z.w {
		z.queue = slices.Delete(z.queue, 0, 1)
		hashes = z.pick(hashes)
	}
	return hashes
}

// pick appends the first candidate to hashes, unless it is already the last one picked.
func (z *winnower) pick(hashes []windowHash) []windowHash {
	if len(z.queue) > 0 && z.queue[0].At != z.picked {
		z.picked = z.queue[0].At
		hashes = append(hashes, z.queue[0])
	}
	return hashes
}

// A duplicatePassage consists of n numbers that occur twice: at positions a and b.
type duplicatePassage struct{ a, b, n int64 }

// streamIndex returns the index of the stream that contains position at. Stream i begins at
// starts[i].
func streamIndex(starts []int64, at int64) int {
	i, found := slices.BinarySearch(starts, at)
	if !found {
		i--
	}
	return i
}

// duplicatePassages returns the passages that equal hashes of w numbers reveal, sorted by a, then
// b. starts has the position at which each stream begins, ascending. hashes is sorted in place.
func duplicatePassages(hashes []windowHash, w int64, starts []int64) (passages []duplicatePassage) {
	slices.SortFunc(hashes, func(x, y windowHash) int { return cmp.Or(cmp.Compare(x.Hash, y.Hash), cmp.Compare(x.At, y.At)) })
	var pairs []duplicatePassage
	for i := 1; i < len(hashes); i++ {
		x, y := hashes[i-1], hashes[i]
		// Two equal windows that overlap consist of periodic numbers, and do not count as copies.
		if x.Hash == y.Hash && x.At != y.At && (y.At-x.At >= w || streamIndex(starts, x.At) != streamIndex(starts, y.At)) {
			pairs = append(pairs, duplicatePassage{x.At, y.At, w})
		}
	}
	slices.SortFunc(pairs, func(x, y duplicatePassage) int { return cmp.Or(cmp.Compare(x.b-x.a, y.b-y.a), cmp.Compare(x.a, y.a)) })
	for _, p := range pairs {
		if len(passages) > 0 {
			last := &passages[len(passages)-1]
			if last.b-last.a == p.b-p.a && p.a <= last.a+last.n &&
				streamIndex(starts, last.a) == streamIndex(starts, p.a) && streamIndex(starts, last.b) == streamIndex(starts, p.b) {
				last.n = p.a + p.n - last.a
				continue
			}
		}
		passages = append(passages, p)
	}
	slices.SortFunc(passages, func(x, y duplicatePassage) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) })
	return passages
}
