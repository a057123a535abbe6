package scan

import (
	"cmp"
	"math"
	"slices"
)

// A winnower picks fingerprints of a stream of numbers, so that two streams that share 2w-1
// consecutive numbers share a fingerprint, at whatever offsets. A fingerprint is the hash of w
// consecutive numbers. Of any w consecutive hashes, the winnower picks at least one. Streams with
// the same fingerprint share w numbers, unless 64-bit hashes collide. Numbers that only repeat may
// get no fingerprint. A winnower belongs to one goroutine.
//
// The algorithm is from Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document
// Fingerprinting" (2003): it picks the smallest of any w consecutive hashes, which are computed as
// by Karp and Rabin. To be fast, it ignores large hashes: on average, 64 of w hashes are small, and
// the probability that none is small is 1 in 10^27. It picks about 2 in w runs of random numbers.
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
	// the last picked run may come first.
	queue  []runHash
	picked int64 // position of the last picked run
}

// A runHash is the fingerprint of the run that begins at position At.
type runHash struct {
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

// add adds numbers to the stream. It returns hashes with the newly picked fingerprints appended.
func (z *winnower) add(numbers []uint64, hashes []runHash) []runHash {
	sum, n, last, mask := z.hash, z.added, z.recent, int64(len(z.recent)-1)
	for _, v := range numbers {
		v++
		sum = sum*hashBase + v - last[n&mask]*z.baseToW
		last[n&mask] = v
		n++
		// Runs of a single repeated number are ignored, because they are no evidence of a copy.
		if hash := (sum ^ sum>>32) * hashBase; hash <= z.maxHash && n >= z.w && sum != v*z.hashOfOnes {
			hashes = z.consider(runHash{hash, z.start + n - z.w}, hashes)
		}
	}
	z.hash, z.added = sum, n
	return z.advance(z.start+n-z.w+1, hashes)
}

// consider adds a run that begins after all candidates, and picks the best candidate.
func (z *winnower) consider(run runHash, hashes []runHash) []runHash {
	hashes = z.advance(run.At, hashes)
	if len(z.queue) > 0 && z.queue[0].At <= run.At-z.w {
		z.queue = slices.Delete(z.queue, 0, 1)
	}
	// If hashes are equal, the last one stays, so that periodic numbers yield few fingerprints. But
	// a run that was already picked is not replaced.
	for n := len(z.queue); n > 0; n = len(z.queue) {
		if back := z.queue[n-1]; back.Hash < run.Hash || back.Hash == run.Hash && back.At == z.picked {
			break
		}
		z.queue = z.queue[:n-1]
	}
	z.queue = append(z.queue, run)
	return z.pick(hashes)
}

// advance removes the candidates that begin more than w numbers before position at, and picks the
// best of the rest.
func (z *winnower) advance(at int64, hashes []runHash) []runHash {
	for len(z.queue) > 0 && z.queue[0].At < at-z.w {
		z.queue = slices.Delete(z.queue, 0, 1)
		hashes = z.pick(hashes)
	}
	return hashes
}

// pick appends the first candidate to hashes, unless it is already the last one picked.
func (z *winnower) pick(hashes []runHash) []runHash {
	if len(z.queue) > 0 && z.queue[0].At != z.picked {
		z.picked = z.queue[0].At
		hashes = append(hashes, z.queue[0])
	}
	return hashes
}

// A duplicateRun is a run of n numbers that occurs twice: at positions a and b.
type duplicateRun struct{ a, b, n int64 }

// streamIndex returns the index of the stream that contains position at. Stream i begins at
// starts[i].
func streamIndex(starts []int64, at int64) int {
	i, found := slices.BinarySearch(starts, at)
	if !found {
		i--
	}
	return i
}

// duplicateRuns returns the duplicated runs that fingerprints of w numbers reveal, sorted by a,
// then b. starts has the position at which each stream begins, ascending. hashes is sorted in
// place.
func duplicateRuns(hashes []runHash, w int64, starts []int64) (runs []duplicateRun) {
	slices.SortFunc(hashes, func(x, y runHash) int { return cmp.Or(cmp.Compare(x.Hash, y.Hash), cmp.Compare(x.At, y.At)) })
	var pairs []duplicateRun
	for i := 1; i < len(hashes); i++ {
		x, y := hashes[i-1], hashes[i]
		// Two runs that overlap consist of periodic numbers, and are no copies.
		if x.Hash == y.Hash && x.At != y.At && (y.At-x.At >= w || streamIndex(starts, x.At) != streamIndex(starts, y.At)) {
			pairs = append(pairs, duplicateRun{x.At, y.At, w})
		}
	}
	slices.SortFunc(pairs, func(x, y duplicateRun) int { return cmp.Or(cmp.Compare(x.b-x.a, y.b-y.a), cmp.Compare(x.a, y.a)) })
	for _, p := range pairs {
		if len(runs) > 0 {
			last := &runs[len(runs)-1]
			if last.b-last.a == p.b-p.a && p.a <= last.a+last.n &&
				streamIndex(starts, last.a) == streamIndex(starts, p.a) && streamIndex(starts, last.b) == streamIndex(starts, p.b) {
				last.n = p.a + p.n - last.a
				continue
			}
		}
		runs = append(runs, p)
	}
	slices.SortFunc(runs, func(x, y duplicateRun) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) })
	return runs
}
