package sampler

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func newTestMixture(t testing.TB, weights ...float64) *mixture {
	t.Helper()
	quotas, err := apportion(weights)
	must(t, err)
	return newMixture(quotas, NewTables(defaultTableBytes))
}

// mixtures returns weights with D from 1 to 2^20.
func mixtures() [][]float64 {
	heavy, heavier := []float64{1}, []float64{1}
	for range 50 {
		heavy, heavier = append(heavy, 0.001), append(heavier, 0.00001)
	}
	list := [][]float64{
		{3}, {7, 2, 1}, {0.7, 0.2, 0.1}, {1, 1, 1}, {0.98, 0.01, 0.01}, {1, 1e-5}, {1e-300, 2e-300}, {1e300, 2e300},
		heavy, heavier, {9035582489, 1234567},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		weights, scale := make([]float64, 1+rng.IntN(30)), math.Pow10(rng.IntN(3))
		for i := range weights {
			weights[i] = float64(rng.IntN(int(scale)*5)) / scale
		}
		weights[0]++
		list = append(list, weights)
	}
	return list
}

// The rows of each source deviate from its quota by less than one.
func TestMixtureIsProportionate(t *testing.T) {
	for _, weights := range mixtures() {
		m := newTestMixture(t, weights...)
		shares, d, count := m.quotas, m.period, make([]int, len(weights))
		within := func(source, n int) {
			if before := m.before(source, uint64(n)); before != uint64(count[source]) {
				t.Fatalf("%v: %d of the first %d rows are source %d's, want %d", weights, before, n, source, count[source])
			}
			if lag := n*shares[source] - count[source]*d; lag <= -d || lag >= d {
				t.Fatalf("%v: %d of the first %d rows are source %d's", weights, count[source], n, source)
			}
		}
		for _, row := range []uint64{1 << 40, 1 << 63, 1<<64 - 1} {
			source, index := m.sourceOf(row)
			same, before := m.sourceOf(row % uint64(d))
			if want := row/uint64(d)*uint64(shares[source]) + before; source != same || index != want || m.rowOf(source, index) != row {
				t.Fatalf("%v: row %d is row %d of source %d, want row %d of %d", weights, row, index, source, want, same)
			}
		}
		for n := range 2 * d {
			source, index := m.sourceOf(uint64(n))
			if index != uint64(count[source]) {
				t.Fatalf("%v: row %d is row %d of source %d, want %d", weights, n, index, source, count[source])
			}
			within(source, n) // count deviates most just before and just after this row
			count[source]++
			within(source, n+1)
			if back := m.rowOf(source, index); back != uint64(n) {
				t.Fatalf("%v: row %d of source %d is %d, want %d", weights, index, source, back, n)
			}
		}
		for i, a := range shares {
			if count[i] != 2*a {
				t.Errorf("%v: %d of two periods' rows are source %d's, want %d", weights, count[i], i, 2*a)
			}
		}
	}
}

func TestMixtureFollowsItsDefinition(t *testing.T) {
	list, rng := mixtures(), rand.New(rand.NewPCG(3, 4))
	// With few values, many picks are due at the same row.
	for range 100 {
		weights := make([]float64, 1+rng.IntN(100))
		for i := range weights {
			weights[i] = float64(rng.IntN(4))
		}
		weights[0]++
		list = append(list, weights)
	}
	for _, weights := range list {
		m := newTestMixture(t, weights...)
		shares, d, count := m.quotas, m.period, make([]int, len(weights))
		for n := range min(d, attempts(2000, 10_000)) {
			want, first := -1, math.MaxInt
			for i, a := range shares {
				due := ((count[i]+1)*d + a - 1) / max(a, 1)
				if a > 0 && count[i]*d < (n+1)*a && due < first {
					want, first = i, due
				}
			}
			if got, _ := m.sourceOf(uint64(n)); got != want {
				t.Fatalf("%v: row %d is of source %d, want %d", weights, n, got, want)
			}
			count[want]++
			if n%(1+d/200) > 0 {
				continue
			}
			for i, got := range m.beforeAll(uint64(n + 1)) {
				if got != uint64(count[i]) {
					t.Fatalf("%v: %d of the first %d rows are source %d's, want %d", weights, got, n+1, i, count[i])
				}
			}
			if got := m.rowsFor(want, uint64(count[want]), 1<<40); got != uint64(n+1) {
				t.Fatalf("%v: source %d has %d of the first %d rows, want of %d", weights, want, count[want], got, n+1)
			}
		}
	}
}

func TestMixtureRejectsWeights(t *testing.T) {
	for _, test := range []struct {
		weights []float64
		want    string
	}{
		{[]float64{1, 1e-7, 1}, "weight 1e-07 of source 1: less than a millionth"},
		{[]float64{math.SmallestNonzeroFloat64, math.MaxFloat64}, "weight 5e-324 of source 0: less than a millionth"},
	} {
		if _, err := apportion(test.weights); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v, want %q", test.weights, err, test.want)
		}
	}
}
