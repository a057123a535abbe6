package survey

import (
	"cmp"
	"math/bits"
	"slices"
)

// A winnower picks fingerprints of a stream of numbers: hashes of some of its runs of w numbers, and of any w runs that begin one
// number after the other at least one. So two streams that share 2w-1 numbers in a row share a fingerprint, wherever those lie; and
// streams with the same fingerprint share w numbers, unless 64 bits of a hash say so by chance. A run of one and the same number has
// none.
//
// It is the algorithm of Schleimer, Wilkerson and Aiken, "Winnowing: Local Algorithms for Document Fingerprinting" (2003), with
// a hash of Karp and Rabin. Of the numbers of a random stream 2/(w+1) begin a run that is picked.
type winnower struct {
	w      int      // a power of two
	last   []uint64 // the last w numbers, mixed; number i at i mod w
	hashes []uint64 // of the w runs that end last; that which ends at i at i mod w
	sum    uint64   // that of the last w numbers, not mixed yet
	lead   uint64   // base to the power of w
	n      int      // numbers so far
	value  uint64   // the last
	same   int      // how many of the last are the same
	picked int      // where the run ends that was picked last, or -1
}

// A print is a fingerprint of the run of numbers from At on.
type print struct {
	Hash uint64
	At   int64
}

const base = 0x9e3779b97f4a7c15

// unpicked is the hash of a run that is not to be picked.
const unpicked = ^uint64(0)

func newWinnower(w int) *winnower {
	z := &winnower{w: w, last: make([]uint64, w), hashes: make([]uint64, w), lead: base, picked: -1}
	for range bits.Len(uint(w)) - 1 {
		z.lead *= z.lead
	}
	return z
}

// mix is the finalizer of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// add continues the stream, and appends what it picks to prints. first is where the stream begins.
func (z *winnower) add(numbers []uint64, prints []print, first int64) []print {
	w := z.w
	for _, v := range numbers {
		i, m := z.n&(w-1), mix(v+1)
		z.sum = z.sum*base + m - z.last[i]*z.lead
		z.last[i] = m
		if v == z.value {
			z.same++
		} else {
			z.value, z.same = v, 1
		}
		end := z.n
		z.n++
		if z.n < w {
			continue
		}
		hash := mix(z.sum)
		if z.same >= w {
			hash = unpicked
		}
		z.hashes[i] = hash
		if z.n < 2*w-1 {
			continue
		}
		switch {
		case z.picked <= end-w:
			z.picked = z.least(end)
		case hash < z.hashes[z.picked&(w-1)]:
			z.picked = end
		default:
			continue
		}
		if least := z.hashes[z.picked&(w-1)]; least != unpicked {
			prints = append(prints, print{least, first + int64(z.picked-w+1)})
		}
	}
	return prints
}

// least is where the run ends that has the least of the hashes, the last such run. end is where the last run ends.
func (z *winnower) least(end int) int {
	best := end
	for at := end - 1; at > end-z.w; at-- {
		if z.hashes[at&(z.w-1)] < z.hashes[best&(z.w-1)] {
			best = at
		}
	}
	return best
}

// A common is n numbers that stand twice: from a and from b on.
type common struct{ a, b, n int64 }

// commonRuns returns the runs that prints of w numbers show, each as long as they show it, by a and then b. starts are where the
// streams begin in the numbers of all of them, in order. It sorts prints.
func commonRuns(prints []print, w int64, starts []int64) (runs []common) {
	slices.SortFunc(prints, func(x, y print) int { return cmp.Or(cmp.Compare(x.Hash, y.Hash), cmp.Compare(x.At, y.At)) })
	streamOf := func(at int64) int {
		i, found := slices.BinarySearch(starts, at)
		if !found {
			i--
		}
		return i
	}
	var pairs []common
	for i := 1; i < len(prints); i++ {
		x, y := prints[i-1], prints[i]
		// Runs that lie within each other show a period, not that something stands twice.
		if x.Hash == y.Hash && x.At != y.At && (y.At-x.At >= w || streamOf(x.At) != streamOf(y.At)) {
			pairs = append(pairs, common{x.At, y.At, w})
		}
	}
	slices.SortFunc(pairs, func(x, y common) int { return cmp.Or(cmp.Compare(x.b-x.a, y.b-y.a), cmp.Compare(x.a, y.a)) })
	for _, p := range pairs {
		if len(runs) > 0 {
			last := &runs[len(runs)-1]
			if last.b-last.a == p.b-p.a && p.a <= last.a+last.n && streamOf(last.a) == streamOf(p.a) && streamOf(last.b) == streamOf(p.b) {
				last.n = p.a + p.n - last.a
				continue
			}
		}
		runs = append(runs, p)
	}
	slices.SortFunc(runs, func(x, y common) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) })
	return runs
}
