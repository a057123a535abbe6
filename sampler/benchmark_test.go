package sampler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

// BenchmarkStages compares a sequence of 50 stages with one of the first stage alone: the rows of
// three sources, and opening 100 sources with six-digit weights up to the first row.
func BenchmarkStages(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	open := func(sources []Source, stages []Stage) *Sequence {
		q, err := New(sources, Settings{Name: "train", BatchSize: 1, BlockSize: 1024, DType: array.Uint16, Layout: XY, Order: Random, World: 1, Stages: stages})
		must(b, err)
		return q
	}
	// stages returns 50 stages of a million rows.
	stages := func(sources, most int) (list []Stage) {
		for i := range uint64(50) {
			stage := Stage{FirstRow: i * 1_000_000}
			for range sources {
				stage.Weights = append(stage.Weights, float64(1+rng.IntN(most)))
			}
			list = append(list, stage)
		}
		return list
	}
	compare := func(name string, work func(one bool)) {
		b.Run(name, func(b *testing.B) {
			var spent [2]time.Duration
			for b.Loop() {
				for i := range spent {
					began := time.Now()
					work(i == 0)
					spent[i] += time.Since(began)
				}
			}
			b.ReportMetric(float64(spent[1])/float64(spent[0]), "50-stages/one")
		})
	}
	list := stages(3, 9)
	few := openSources(b, writeSources(b, 2, []int{1 << 20}, []int{1 << 20}, []int{1 << 20}), cache.Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Pread}})
	sequences := map[bool]*Sequence{true: open(few, list[:1]), false: open(few, list)}
	batches, dst := make([]uint64, 1000), make([]byte, sequences[true].Batch().Bytes())
	for i := range batches {
		batches[i] = rng.Uint64N(50_000_000)
	}
	compare("read-1000-rows", func(one bool) {
		q := sequences[one]
		for _, k := range batches {
			must(b, q.Read(dst, k, 0))
		}
	})
	many := stubSources(array.Uint16, slices.Repeat([][]int64{{1 << 20}}, 100)...)
	list = stages(100, 999_999)
	compare("first-row", func(one bool) {
		stages := list
		if one {
			stages = list[:1]
		}
		open(many, stages).Start(0, 0)
	})
}
