package sampler

import "math/bits"

// blocks permutes the R windows of a share, or rows of documents, so that successive rows lie in few places of the source: groups of
// documents that stay in memory, or blocks of bytes that a host keeps. An epoch cuts the ring of windows into blocks, from a random window
// on, permutes the blocks, and then permutes the rows within every mixedBlocks blocks.
type blocks struct {
	share share
	n     uint64       // R
	size  uint64       // rows of a block
	whole uint64       // blocks of that size; the rows that are left are a shorter block, the last
	span  uint64       // rows of mixedBlocks blocks
	order permutations // of the whole blocks
	rows  permutations // of a span
	last  permutations // of the last span, which may be shorter
}

// mixedBlocks is how many places of a source rows are drawn from at a time. A source of no more blocks than that is permuted evenly.
const mixedBlocks = 16

func newBlocks(key [2]uint64, of share) *blocks {
	r := uint64(of.n)
	size := min(uint64(of.block), r)
	o := &blocks{share: of, n: r, size: size, whole: r / size, span: mixedBlocks * size}
	o.order = newPermutations(key, o.whole)
	o.rows = newPermutations(key, min(o.span, r))
	o.last = newPermutations(key, r-(r-1)/o.span*o.span)
	return o
}

func (o *blocks) start(row uint64) int64 {
	return o.share.at(int64(o.permute(row/o.n, row%o.n)))
}

func (o *blocks) permute(epoch, i uint64) uint64 {
	span := i / o.span
	i = span*o.span + o.within(span).at(epoch, span+1, i%o.span)
	if block := i / o.size; block < o.whole {
		i = o.order.at(epoch, 0, block)*o.size + i%o.size
	}
	return (i + o.begin(epoch)) % o.n
}

func (o *blocks) inverse(epoch, row uint64) uint64 {
	i := (row + o.n - o.begin(epoch)) % o.n
	if block := i / o.size; block < o.whole {
		i = o.order.of(epoch, 0, block)*o.size + i%o.size
	}
	span := i / o.span
	return span*o.span + o.within(span).of(epoch, span+1, i%o.span)
}

func (o *blocks) within(span uint64) *permutations {
	if (span+1)*o.span <= o.n {
		return &o.rows
	}
	return &o.last
}

func (o *blocks) begin(epoch uint64) uint64 {
	keys := o.order.keys(epoch, 0)
	begin, _ := bits.Mul64(keys[rounds+1], o.n)
	return begin
}
