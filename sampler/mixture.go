package sampler

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"

	"batchfs/internal/minheap"
)

// maxPeriod limits the period D, in rows, so that a mixture takes at most 12 MiB.
const maxPeriod = 1 << 20

// A mixture assigns each row to a source, with period D. A source with quota a (its rows in a
// period) has n*a/D of the first n rows, give or take less than one. A mixture is immutable.
type mixture struct {
	pattern      []pick     // one per row of a period
	rowsBySource [][]uint32 // rows of each source in a period
}

// A pick is the source of a row, and how many rows of that source precede it in the period.
type pick struct{ source, before uint32 }

func newMixture(weights []float64) (*mixture, error) {
	quotas, err := apportion(weights)
	if err != nil {
		return nil, err
	}
	return buildPattern(quotas), nil
}

// sourceOf returns the source of a row, and how many rows of that source precede it.
func (m *mixture) sourceOf(row uint64) (source int, index uint64) {
	d := uint64(len(m.pattern))
	p := m.pattern[row%d]
	return int(p.source), row/d*uint64(len(m.rowsBySource[p.source])) + uint64(p.before)
}

// rowOf is the inverse of sourceOf.
func (m *mixture) rowOf(source int, index uint64) uint64 {
	a := uint64(len(m.rowsBySource[source]))
	return index/a*uint64(len(m.pattern)) + uint64(m.rowsBySource[source][index%a])
}

// before returns how many of the first n rows come from a source. Within a period, that is n*a/D,
// rounded down or up.
func (m *mixture) before(source int, n uint64) uint64 {
	d, a := uint64(len(m.pattern)), uint64(len(m.rowsBySource[source]))
	least := n % d * a / d
	if uint64(m.rowsBySource[source][least]) < n%d {
		least++
	}
	return n/d*a + least
}

// apportion divides the weights by their sum, brings them to their least common denominator D, and
// returns the numerators as quotas. If D exceeds maxPeriod, it rounds to multiples of 1/maxPeriod
// by largest remainders. It reads a weight as its shortest decimal form: 0.7 is 7/10.
func apportion(weights []float64) ([]int, error) {
	if len(weights) == 0 {
		return nil, errors.New("a mixture needs at least one source")
	}
	exact, sum := make([]big.Rat, len(weights)), new(big.Rat)
	for i, w := range weights {
		if !(w > 0) || math.IsInf(w, 1) {
			return nil, fmt.Errorf("weight %v of source %d: must be a positive finite number", w, i)
		}
		exact[i].SetString(strconv.FormatFloat(w, 'g', -1, 64))
		sum.Add(sum, &exact[i])
	}
	period, common := big.NewInt(1), new(big.Int)
	for i := range exact {
		d := exact[i].Quo(&exact[i], sum).Denom()
		period.Mul(period, common.Div(d, common.GCD(nil, nil, period, d)))
	}
	if most := big.NewInt(maxPeriod); period.Cmp(most) > 0 {
		period = most
	}
	scale, whole := new(big.Rat).SetInt(period), new(big.Int)
	quotas, rest, order := make([]int, len(exact)), make([]big.Rat, len(exact)), make([]int, len(exact))
	left := int(period.Int64())
	for i := range exact {
		r := rest[i].Mul(&exact[i], scale)
		whole.Quo(r.Num(), r.Denom())
		r.Sub(r, new(big.Rat).SetInt(whole))
		quotas[i], order[i] = int(whole.Int64()), i
		left -= quotas[i]
	}
	slices.SortStableFunc(order, func(i, j int) int { return rest[j].Cmp(&rest[i]) })
	for _, i := range order[:left] {
		quotas[i]++
	}
	if i := slices.Index(quotas, 0); i >= 0 {
		return nil, fmt.Errorf("weight %v of source %d: less than a millionth of the sum; raise it or drop the source", weights[i], i)
	}
	return quotas, nil
}

// buildPattern assigns the rows of a period to sources by earliest pseudo-deadline first, an
// algorithm from Baruah, Cohen, Plaxton and Varvel, "Proportionate Progress: A Notion of Fairness
// in Resource Allocation" (1996). Pick j of a source with quota a takes row floor(j*D/a) or a later
// one, and is due at row ceil((j+1)*D/a)-1. Each row goes to the source whose next pick is due
// first among those that may take it; the first source wins a tie.
func buildPattern(quotas []int) *mixture {
	// Each source is in one heap, as a row in the upper 32 bits and the source's number in the
	// lower ones.
	var waiting minheap.Heap // ordered by the first row that the source's next pick may take
	var ready minheap.Heap   // ordered by the row at which that pick is due
	m, d := new(mixture), 0
	for i, a := range quotas {
		waiting.Push(uint64(i))
		m.rowsBySource = append(m.rowsBySource, make([]uint32, 0, a))
		d += a
	}
	m.pattern = make([]pick, d)
	for row := range m.pattern {
		for len(waiting) > 0 && waiting[0]>>32 <= uint64(row) {
			i := uint32(waiting.Pop())
			due := ((len(m.rowsBySource[i])+1)*d - 1) / quotas[i]
			ready.Push(uint64(due)<<32 | uint64(i))
		}
		first := uint32(ready.Pop())
		m.pattern[row] = pick{first, uint32(len(m.rowsBySource[first]))}
		m.rowsBySource[first] = append(m.rowsBySource[first], uint32(row))
		from := len(m.rowsBySource[first]) * d / quotas[first]
		waiting.Push(uint64(from)<<32 | uint64(first))
	}
	return m
}
