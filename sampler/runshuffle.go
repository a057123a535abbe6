package sampler

import "math/bits"

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
