package sampler

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strconv"
	"sync/atomic"

	"batchfs/internal/minheap"
)

// maxPeriod limits the period D, in rows, so that a pattern takes at most 12 MiB.
const maxPeriod = 1 << 20

// A mixture assigns rows to sources in a pattern that repeats after D rows, the period. The quota a
// of a source is its number of rows in a period. Of the first n rows, a source has n*a/D, rounded
// down or up. A mixture is safe for concurrent use.
type mixture struct {
	quotas []int // for each source; 0 if no rows come from it
	period int
	tables *Tables // cache of the pattern, which is built when it is first needed
	cached atomic.Pointer[pattern]
}

// A pattern lists the rows of a period. It is immutable.
type pattern struct {
	picks        []pick
	rowsBySource [][]uint32
}

// A pick is the source of a row, and how many rows of that source precede it in the period.
type pick struct{ source, before uint32 }

func newMixture(quotas []int, tables *Tables) *mixture {
	m := &mixture{quotas: quotas, tables: tables}
	for _, a := range quotas {
		m.period += a
	}
	return m
}

func (m *mixture) pattern() *pattern {
	p := m.cached.Load()
	if p == nil {
		p = buildPattern(m.quotas, m.period)
		cacheTable(m.tables, &m.cached, p, 12*int64(m.period)+24*int64(len(m.quotas)))
	}
	return p
}

// sourceOf returns the source of a row, and how many rows of that source precede it.
func (m *mixture) sourceOf(row uint64) (source int, index uint64) {
	d := uint64(m.period)
	p := m.pattern().picks[row%d]
	return int(p.source), row/d*uint64(m.quotas[p.source]) + uint64(p.before)
}

// rowOf is the inverse of sourceOf.
func (m *mixture) rowOf(source int, index uint64) uint64 {
	a := uint64(m.quotas[source])
	return index/a*uint64(m.period) + uint64(m.pattern().rowsBySource[source][index%a])
}

// before returns how many of the first n rows come from a source. Within a period, that is n*a/D,
// rounded down or up.
func (m *mixture) before(source int, n uint64) uint64 {
	d, a := uint64(m.period), uint64(m.quotas[source])
	if a == 0 {
		return 0
	}
	count := n % d * a / d
	if uint64(m.pattern().rowsBySource[source][count]) < n%d {
		count++
	}
	return n/d*a + count
}

// beforeAll returns what before returns for each source, but does not build the pattern.
//
// buildPattern treats picks like jobs that take one row each: a pick is released at the first row
// that it may take, and of the released picks, the one that is due first takes the row. No pick is
// ever late, so all picks that are due before row n take one of the first n rows. The rest of these
// rows go to candidates: picks that are released before row n, but due later. Each source has at
// most one candidate.
//
// The sets of jobs that can all be done in time are a matroid, so a greedy algorithm finds the
// candidates that take a row before n: in the order in which they are due, it accepts each that
// fits. Picks that are released at row t or later can take only the n-t rows from t to n-1. So a
// candidate fits if, for each t up to its release, fewer than n-t such picks were accepted.
func (m *mixture) beforeAll(n uint64) []uint64 {
	type candidate struct{ release, due, source uint64 }
	d, counts, candidates := uint64(m.period), make([]uint64, len(m.quotas)), []candidate(nil)
	periods, n := n/d, n%d
	first, left := n, n // first row at which a candidate is released, and rows left for candidates
	for i, quota := range m.quotas {
		a := uint64(quota)
		picks := n * a / d
		counts[i], left = periods*a+picks, left-picks
		if n*a%d > 0 {
			c := candidate{picks * d / a, ((picks+1)*d - 1) / a, uint64(i)}
			candidates, first = append(candidates, c), min(first, c.release)
		}
	}
	if left == 0 {
		return counts
	}
	// slack[t-first] is how many more picks that are released at row t or later can be accepted.
	slack := make([]int, n-first)
	for _, quota := range m.quotas {
		a := uint64(quota)
		for j := (first*a + d - 1) / d; j < n*a/d; j++ {
			slack[j*d/a-first]--
		}
	}
	for t, sum := len(slack)-1, 0; t >= 0; t-- {
		sum += slack[t] + 1
		slack[t] = sum
	}
	slices.SortFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.release, b.release) })
	// minSlack[i] is the least slack of the rows after the release of candidate i-1, up to the
	// release of candidate i. A candidate fits if the elements up to its own are positive.
	minSlack, order, t := make([]int, len(candidates)), make([]int, len(candidates)), first
	for i, c := range candidates {
		for minSlack[i], order[i] = math.MaxInt, i; t <= c.release; t++ {
			minSlack[i] = min(minSlack[i], slack[t-first])
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := candidates[i], candidates[j]
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.source, b.source))
	})
	for _, i := range order {
		if left > 0 && slices.Min(minSlack[:i+1]) > 0 {
			counts[candidates[i].source]++
			left--
			for k := range minSlack[:i+1] {
				minSlack[k]--
			}
		}
	}
	return counts
}

// rowsFor returns the smallest n for which count of the first n rows come from a source, or most if
// that is smaller. count must be at least 1, unless no rows come from the source.
func (m *mixture) rowsFor(source int, count, most uint64) uint64 {
	d, a := uint64(m.period), uint64(m.quotas[source])
	if a == 0 || (count-1)/a > most/d {
		return most
	}
	periods, j := (count-1)/a, (count-1)%a
	release, due := j*d/a, ((j+1)*d-1)/a
	if most -= periods * d; release < most {
		n := sort.Search(int(due-release), func(i int) bool { return m.beforeAll(release + 1 + uint64(i))[source] > j })
		most = min(most, release+1+uint64(n))
	}
	return periods*d + most
}

// decimal returns the shortest decimal number that represents w: 7/10 for 0.7.
func decimal(w float64) *big.Rat {
	r, _ := new(big.Rat).SetString(strconv.FormatFloat(w, 'g', -1, 64))
	return r
}

// apportion divides the weights by their sum, brings them to their least common denominator D, and
// returns the numerators as quotas. If D exceeds maxPeriod, it rounds to multiples of 1/maxPeriod
// by largest remainders. A weight counts as its shortest decimal form. At least one must be
// above 0.
func apportion(weights []float64) ([]int, error) {
	whole, scale, common := make([]*big.Int, len(weights)), big.NewInt(1), new(big.Int)
	exact := make([]*big.Rat, len(weights))
	for i, w := range weights {
		exact[i] = decimal(w)
		d := exact[i].Denom()
		scale.Mul(scale, common.Div(d, common.GCD(nil, nil, scale, d)))
	}
	sum := new(big.Int)
	common.SetInt64(0)
	for i, w := range exact { // multiplied by scale, weights are whole
		whole[i] = new(big.Int).Div(scale, w.Denom())
		sum.Add(sum, whole[i].Mul(whole[i], w.Num()))
		common.GCD(nil, nil, common, whole[i])
	}
	period := common.Div(sum, common)
	if most := big.NewInt(maxPeriod); period.Cmp(most) > 0 {
		period = most
	}
	quotas, order, left := make([]int, len(weights)), make([]int, len(weights)), int(period.Int64())
	quota := new(big.Int)
	for i, rest := range whole {
		quota.DivMod(rest.Mul(rest, period), sum, rest)
		quotas[i], order[i] = int(quota.Int64()), i
		left -= quotas[i]
	}
	slices.SortStableFunc(order, func(i, j int) int { return whole[j].Cmp(whole[i]) })
	for _, i := range order[:left] {
		quotas[i]++
	}
	for i, w := range weights {
		if w > 0 && quotas[i] == 0 {
			return nil, fmt.Errorf("weight %v of source %d: less than a millionth of the sum; raise it or drop the source", w, i)
		}
	}
	return quotas, nil
}

// buildPattern assigns the rows of a period to sources by earliest pseudo-deadline first, an
// algorithm from Baruah, Cohen, Plaxton and Varvel, "Proportionate Progress: A Notion of Fairness
// in Resource Allocation" (1996). Pick j of a source with quota a takes row floor(j*D/a) or a later
// one, and is due at row ceil((j+1)*D/a)-1. Each row goes to the source whose next pick is due
// first among those that may take it; the first source wins a tie.
func buildPattern(quotas []int, d int) *pattern {
	// Each source is in one heap, as a row in the upper 32 bits and the source's number in the
	// lower ones.
	var waiting minheap.Heap // ordered by the first row that the source's next pick may take
	var ready minheap.Heap   // ordered by the row at which that pick is due
	p := &pattern{picks: make([]pick, d)}
	for i, a := range quotas {
		if a > 0 {
			waiting.Push(uint64(i))
		}
		p.rowsBySource = append(p.rowsBySource, make([]uint32, 0, a))
	}
	for row := range p.picks {
		for len(waiting) > 0 && waiting[0]>>32 <= uint64(row) {
			i := uint32(waiting.Pop())
			due := ((len(p.rowsBySource[i])+1)*d - 1) / quotas[i]
			ready.Push(uint64(due)<<32 | uint64(i))
		}
		first := uint32(ready.Pop())
		p.picks[row] = pick{first, uint32(len(p.rowsBySource[first]))}
		p.rowsBySource[first] = append(p.rowsBySource[first], uint32(row))
		from := len(p.rowsBySource[first]) * d / quotas[first]
		waiting.Push(uint64(from)<<32 | uint64(first))
	}
	return p
}
