package scan

import (
	"cmp"
	"math"
	"slices"
)

// A winnower picks fingerprints of a stream of numbers: hashes of some of its runs of w numbers, and of any w runs that begin one
// number after the other at least one. So two streams that share 2w-1 numbers in a row share a fingerprint, wherever those lie; and
// streams with the same fingerprint share w numbers, unless 64 bits of a hash say so by chance. Where few numbers come again and
// again there may be none.
//
// It is the algorithm of Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document Fingerprinting" (2003): of any w
// runs the one with the least hash is picked. The hash is by Karp and Rabin. To be fast, it only looks at small hashes: w runs
// have 64, and none with a chance of 1 in 10^27. Of random runs 2 in w are picked.
type winnower struct {
	w     int64    // a power of two
	last  []uint64 // the last w numbers, plus one; number i at i mod w
	sum   uint64   // the hash of those
	lead  uint64   // base to the power of w
	ones  uint64   // the hash of w ones
	small uint64   // the largest small hash
	n     int64    // numbers so far
	first int64    // position of the first number

	queue  []runHash // the run that was picked last, unless later ones have it, and then each that is less than all behind it
	picked int64     // where the run begins that was picked last
}

// A runHash is a fingerprint of the run of numbers from At on.
type runHash struct {
	Hash uint64
	At   int64
}

// base is odd, so that the hash depends on all bits of all numbers.
const base = 0x9e3779b97f4a7c15

func newWinnower(w, first int64) *winnower {
	z := &winnower{w: w, last: make([]uint64, w), lead: 1, first: first, picked: -1}
	for range w {
		z.ones = z.ones*base + 1
		z.lead *= base
	}
	z.small = math.MaxUint64 / uint64(max(w/64, 1))
	return z
}

// add continues the stream, and appends what it picks to prints.
func (z *winnower) add(numbers []uint64, prints []runHash) []runHash {
	sum, n, last, mask := z.sum, z.n, z.last, int64(len(z.last)-1)
	for _, v := range numbers {
		v++
		sum = sum*base + v - last[n&mask]*z.lead
		last[n&mask] = v
		n++
		// One and the same number over and over shows nothing.
		if hash := (sum ^ sum>>32) * base; hash <= z.small && n >= z.w && sum != v*z.ones {
			prints = z.look(runHash{hash, z.first + n - z.w}, prints)
		}
	}
	z.sum, z.n = sum, n
	return z.pass(z.first+n-z.w+1, prints)
}

func (z *winnower) look(run runHash, prints []runHash) []runHash {
	prints = z.pass(run.At, prints)
	if len(z.queue) > 0 && z.queue[0].At <= run.At-z.w {
		z.queue = slices.Delete(z.queue, 0, 1)
	}
	// Of equal ones the last, so that a period does not make many, but the one that was picked stays.
	for n := len(z.queue); n > 0; n = len(z.queue) {
		if back := z.queue[n-1]; back.Hash < run.Hash || back.Hash == run.Hash && back.At == z.picked {
			break
		}
		z.queue = z.queue[:n-1]
	}
	z.queue = append(z.queue, run)
	return z.pick(prints)
}

// pass picks the least of w runs that begin before a position.
func (z *winnower) pass(at int64, prints []runHash) []runHash {
	for len(z.queue) > 0 && z.queue[0].At < at-z.w {
		z.queue = slices.Delete(z.queue, 0, 1)
		prints = z.pick(prints)
	}
	return prints
}

func (z *winnower) pick(prints []runHash) []runHash {
	if len(z.queue) > 0 && z.queue[0].At != z.picked {
		z.picked = z.queue[0].At
		prints = append(prints, z.queue[0])
	}
	return prints
}

// A duplicateRun is n numbers that stand twice: from a and from b on.
type duplicateRun struct{ a, b, n int64 }

// streamOf is the stream of the number at a position.
func streamOf(starts []int64, at int64) int {
	i, found := slices.BinarySearch(starts, at)
	if !found {
		i--
	}
	return i
}

// duplicateRuns returns the runs that prints of w numbers show, each as long as they show it, by a and then b. starts are where the
// streams begin in the numbers of all of them, in order. It sorts prints.
func duplicateRuns(prints []runHash, w int64, starts []int64) (runs []duplicateRun) {
	slices.SortFunc(prints, func(x, y runHash) int { return cmp.Or(cmp.Compare(x.Hash, y.Hash), cmp.Compare(x.At, y.At)) })
	var pairs []duplicateRun
	for i := 1; i < len(prints); i++ {
		x, y := prints[i-1], prints[i]
		// Runs that lie within each other show a period, not that something stands twice.
		if x.Hash == y.Hash && x.At != y.At && (y.At-x.At >= w || streamOf(starts, x.At) != streamOf(starts, y.At)) {
			pairs = append(pairs, duplicateRun{x.At, y.At, w})
		}
	}
	slices.SortFunc(pairs, func(x, y duplicateRun) int { return cmp.Or(cmp.Compare(x.b-x.a, y.b-y.a), cmp.Compare(x.a, y.a)) })
	for _, p := range pairs {
		if len(runs) > 0 {
			last := &runs[len(runs)-1]
			if last.b-last.a == p.b-p.a && p.a <= last.a+last.n &&
				streamOf(starts, last.a) == streamOf(starts, p.a) && streamOf(starts, last.b) == streamOf(starts, p.b) {
				last.n = p.a + p.n - last.a
				continue
			}
		}
		runs = append(runs, p)
	}
	slices.SortFunc(runs, func(x, y duplicateRun) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) })
	return runs
}
