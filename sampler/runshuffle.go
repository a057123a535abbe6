package sampler

import "math/bits"

// runShuffle permutes the R windows of a share, or rows of documents, so that successive rows lie in few places of the source: groups of
// documents that stay in memory, or blocks of bytes that a host keeps. An epoch cuts the ring of windows into blocks, from a random window
// on, permutes the blocks, and then permutes the rows within every mixedRuns blocks.
type runShuffle struct {
	n     uint64       // R
	size  uint64       // rows of a block
	order permutations // permutes the blocks of that size; the rows that are left are a shorter last block
	rows  permutations // permutes a span: the rows of mixedRuns blocks, or all rows if there are fewer
	last  permutations // of the last span, which may be shorter
}

// mixedRuns is how many places of a source rows are drawn from at a time. A source of no more blocks than that is permuted evenly.
const mixedRuns = 16

func newRunShuffle(key [2]uint64, r, size uint64) *runShuffle {
	size = min(size, r)
	span := min(mixedRuns*size, r)
	last := r - (r-1)/span*span
	return &runShuffle{r, size, newPermutations(key, r/size), newPermutations(key, span), newPermutations(key, last)}
}

func (o *runShuffle) permute(epoch, i uint64) uint64 {
	span := i / o.rows.n
	i = span*o.rows.n + o.within(span).apply(epoch, span+1, i%o.rows.n)
	if block := i / o.size; block < o.order.n {
		i = o.order.apply(epoch, 0, block)*o.size + i%o.size
	}
	return (i + o.begin(epoch)) % o.n
}

func (o *runShuffle) inverse(epoch, row uint64) uint64 {
	i := (row + o.n - o.begin(epoch)) % o.n
	if block := i / o.size; block < o.order.n {
		i = o.order.invert(epoch, 0, block)*o.size + i%o.size
	}
	span := i / o.rows.n
	return span*o.rows.n + o.within(span).invert(epoch, span+1, i%o.rows.n)
}

func (o *runShuffle) within(span uint64) *permutations {
	if (span+1)*o.rows.n <= o.n {
		return &o.rows
	}
	return &o.last
}

func (o *runShuffle) begin(epoch uint64) uint64 {
	keys := o.order.keys(epoch, 0)
	begin, _ := bits.Mul64(keys[rounds+1], o.n)
	return begin
}
