package bench

import (
	"cmp"
	"slices"
	"time"
)

const (
	batchSize, blockSize = 12, 1024
	defaultAccess        = "remap"
)

// A scene is a workload for which ways of getting batches are compared.
type scene struct {
	Name    string        `json:"name"`
	Batch   int           `json:"batch_size"`
	Block   int           `json:"block_size"`
	Compute time.Duration `json:"compute_ns"` // simulated work before each batch
	Cold    bool          `json:"cold"`       // whether runs start with a cold page cache
	Ways    []*way        `json:"ways"`

	rounds     int // runs of each way
	maxSteps   int // batches in a run
	maxSeconds float64
}

// A way is one way of getting batches in a scene, with its measurements in µs per batch.
type way struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"`   // function in bench.py
	Access  string    `json:"access"` // memory.access of the mount; empty: a loader in the trainer
	Rounds  []float64 `json:"rounds"`
	Wait    float64   `json:"wait"` // median of the rounds
	Low     float64   `json:"low"`
	High    float64   `json:"high"`
	P99     float64   `json:"p99"`               // 99th percentile of all waits
	NanoGPT float64   `json:"nanogpt_over_this"` // wait of nanoGPT divided by Wait

	waits []float64 // every wait of all rounds
}

func (o *options) scenes(torch bool) []*scene {
	scenes := []*scene{
		{Name: "back to back", rounds: 5, maxSteps: 1 << 20, maxSeconds: 0.12},
		{Name: "after 3 ms of compute", Compute: 3 * time.Millisecond, rounds: 5, maxSteps: 40, maxSeconds: 10},
		// A longer run would not stay cold, because nanoGPT's loader reads so much of the file.
		{Name: "cold, after 5 ms of compute", Compute: 5 * time.Millisecond, Cold: true, rounds: 2, maxSteps: 250, maxSeconds: 1.5},
	}
	for _, sc := range scenes {
		sc.Batch, sc.Block = batchSize, blockSize
		sc.rounds, sc.maxSteps = cmp.Or(o.rounds, sc.rounds), cmp.Or(o.steps, sc.maxSteps)
		add := func(name, kind, access string) {
			sc.Ways = append(sc.Ways, &way{Name: name, Kind: kind, Access: access})
		}
		add("nanoGPT get_batch", "nanogpt", "")
		add("one pread per row, in the trainer", "pread_rows", "")
		if torch {
			add("PyTorch DataLoader, 2 workers", "dataloader", "")
		}
		for _, access := range []string{defaultAccess, "pread"} {
			add("batches.bin in order, "+access, "batches_bin", access)
			add("next kept open, "+access, "next_kept", access)
			add("next opened for each batch, "+access, "next_opened", access)
		}
	}
	return scenes
}

// typicalWait returns the µs per batch of one run. From a cold disk, it is the mean, which includes
// rare long waits. With compute between batches, it is the median, which ignores them. Back to
// back, it is the median of means of 32 batches each, because read-ahead comes in bursts.
func (sc *scene) typicalWait(waits []float64) float64 {
	switch {
	case sc.Cold:
		return mean(waits)
	case sc.Compute > 0:
		return quantile(waits, 0.5)
	}
	const window = 32
	if len(waits) < 4*window {
		return mean(waits)
	}
	var means []float64
	for w := range slices.Chunk(waits[:len(waits)/window*window], window) {
		means = append(means, mean(w))
	}
	return quantile(means, 0.5)
}

func (sc *scene) summarize() {
	for _, w := range sc.Ways {
		w.Wait, w.Low, w.High = quantile(w.Rounds, 0.5), slices.Min(w.Rounds), slices.Max(w.Rounds)
		w.P99, w.NanoGPT = quantile(w.waits, 0.99), sc.Ways[0].Wait/w.Wait
	}
}

func mean(xs []float64) (sum float64) {
	for _, x := range xs {
		sum += x / float64(len(xs))
	}
	return sum
}

// quantile returns the q-quantile of xs with linear interpolation, or 0 if xs is empty.
func quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	position := q * float64(len(xs)-1)
	i := int(position)
	return xs[i] + (position-float64(i))*(xs[min(i+1, len(xs)-1)]-xs[i])
}
