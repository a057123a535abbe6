package sampler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The rows of a packer are those of the same rules, followed without any index.
func TestPackerIsBestFitDecreasing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, slots := range []int{1, 2, 3, 17, 64, 65, 5000, 300_000} {
		p := newPacker(slots)
		for range few(20, 200) {
			lengths := make([]int32, r.IntN(200))
			most := 1 + r.IntN(slots)
			for i := range lengths {
				lengths[i] = 1 + r.Int32N(int32(most))
			}
			order := make([]int, len(lengths))
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(i, j int) int { return int(lengths[j] - lengths[i]) })
			type row struct {
				room   int32
				number int
			}
			var rows []row // latest change last
			want, count := make([]int32, len(lengths)), []int32{}
			for _, i := range order {
				best := -1
				for n, r := range rows {
					if r.room >= lengths[i] && (best < 0 || r.room <= rows[best].room) {
						best = n
					}
				}
				to := row{int32(slots), len(count)}
				if best < 0 {
					count = append(count, 0)
				} else {
					to = rows[best]
					rows = slices.Delete(rows, best, best+1)
				}
				to.room -= lengths[i]
				rows = append(rows, to)
				want[i] = int32(to.number)
				count[to.number]++
			}
			p.pack(lengths)
			if !slices.Equal(p.row, want) || !slices.Equal(p.count, count) {
				t.Fatalf("%d slots, segments %d: rows %d with %d segments, want %d with %d", slots, lengths, p.row, p.count, want, count)
			}
		}
	}
}

func BenchmarkPacker(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, slots := range []int{1025, 8193, 1<<20 + 1} {
		b.Run(fmt.Sprint(slots), func(b *testing.B) {
			lengths := make([]int32, 4096)
			for i := range lengths {
				lengths[i] = 1 + r.Int32N(int32(min(slots, 2000)))
			}
			p := newPacker(slots)
			for b.Loop() {
				p.pack(lengths)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(lengths)), "ns/segment")
		})
	}
}
