package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"batchfs/cmd/batchfs/command"
	"batchfs/sampler"
)

// blockCounts describes the blocks that a run needs on each host.
type blockCounts struct {
	blocksPerBatch, blocksPerStep float64 // blocks per batch of a rank, and per step of a host
	firstStepBlocks               int
	newBlocksPerStep              float64 // blocks per step that are new, in a host's first steps
	stepsInMemory                 float64 // steps for which a block stays in a host's memory
	corpusBlocks, corpusBytes     int64   // size of the corpus
	steps                         uint64  // steps that were counted
	misses                        []memoryMiss
}

func (n *blockCounts) blockBytes() float64 { return float64(n.corpusBytes) / float64(n.corpusBlocks) }

// A memoryMiss is a sampled step in which a host needs a block that is not in its memory. It
// represents several blocks of each host.
type memoryMiss struct {
	step      uint64
	firstNeed uint64  // step in which the host first needed the block
	gap       uint64  // steps since the host last needed the block; 0 if it never did
	blocks    float64 // number of blocks that the sampled block represents
	bytes     float64 // size of all these blocks
}

const (
	countedRows = 20_000  // rows whose blocks are counted, in each range of steps
	maxLookups  = 500_000 // approximate calls of Find
	maxAsked    = 5e7     // if one block needs more calls of Find, plan gives up
)

// countBlocks counts the blocks that the first steps need, from two samples: all blocks of some
// ranges of steps, and all needs of some evenly spaced blocks. progress receives the fraction of
// the work done since its last call.
func (c *corpus) countBlocks(ctx context.Context, steps uint64, progress func(done float64)) (*blockCounts, error) {
	n := &blockCounts{steps: steps}
	for i := range 4 {
		if err := c.countSteps(steps/4*uint64(i), i == 0, n); err != nil {
			return nil, err
		}
	}
	for i, s := range c.sources {
		for column := range s.arrays {
			if err := c.sampleBlocks(ctx, n, i, column, progress); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(n.misses, func(a, b memoryMiss) int { return cmp.Compare(a.step, b.step) })
	return n, nil
}

// countSteps adds to n the blocks that the first host needs in some steps, beginning with step k.
// first is true for the first range of steps.
func (c *corpus) countSteps(k uint64, first bool, n *blockCounts) error {
	type block struct {
		source, column, file int
		number               int64
	}
	var ranks []*sampler.Sequence
	for rank := range c.ranksPerHost {
		s := c.sequence.Settings
		s.Rank = rank
		q, err := c.sequence.With(s)
		if err != nil {
			return err
		}
		ranks = append(ranks, q)
	}
	steps := min(max(countedRows/(c.ranksPerHost*c.sequence.BatchSize), 1), 100)
	seen := map[block]bool{}
	// Memory keeps the blocks that are needed soonest. Besides the blocks in the memory of a host,
	// each rank looks ahead by as many blocks as fit in it. With more than two ranks, blocks are
	// evicted before they are used again, so at most two ranks count.
	known := (1 + min(c.ranksPerHost, 2)) * c.blockOptions.MaxBuffers()
	var perBatch, perStep, held int
	for i := range steps {
		step := map[block]bool{}
		for _, q := range ranks {
			batch := map[block]bool{}
			for w, err := range q.Windows(k + uint64(i)) {
				if err != nil {
					return err
				}
				c.sources[w.Source].arrays[w.Column].Blocks(w.Window, c.blockOptions.BlockBytes, func(file int, number int64) {
					needed := block{w.Source, w.Column, file, number}
					batch[needed], step[needed], seen[needed] = true, true, true
				})
			}
			perBatch += len(batch)
		}
		if perStep += len(step); first && i == 0 {
			n.firstStepBlocks = len(step)
		}
		if len(seen) <= known {
			held = i
		}
	}
	if held == steps-1 {
		held = steps * known / len(seen)
	}
	n.blocksPerBatch += float64(perBatch) / float64(steps*c.ranksPerHost) / 4
	n.blocksPerStep += float64(perStep) / float64(steps) / 4
	n.stepsInMemory += float64(held) / 4
	if first {
		n.newBlocksPerStep = float64(len(seen)) / float64(steps)
	}
	return nil
}

// A need is a step in which a host needs a given block.
type need struct {
	host int
	step uint64
}

// A blockElements is the range of a source's elements in one block: [begin, end).
type blockElements struct {
	source     int
	begin, end int64
}

// sampleBlocks adds to n the misses of some evenly spaced blocks of an array.
func (c *corpus) sampleBlocks(ctx context.Context, n *blockCounts, i, column int, progress func(done float64)) error {
	a := c.sources[i].arrays[column]
	size, files := c.blockOptions.BlockBytes, a.FileBytes()
	before := make([]int64, len(files)+1) // number of blocks before each file
	for f, bytes := range files {
		before[f+1] = before[f] + (bytes+size-1)/size
		n.corpusBytes += bytes
	}
	total := before[len(files)]
	n.corpusBlocks += total

	elementsPerBlock := float64(a.Len()) / float64(total)
	epochs := float64(n.steps) * c.rowsPerStep(i) / float64(c.sources[i].windows)
	asked := (elementsPerBlock/c.stride() + 2) * (epochs + 1)
	if epochs > 100 && asked > maxAsked { // counting would take hours and all memory
		return fmt.Errorf("source %s: is read for %s epochs within %s steps, more than plan can count; lower its weight, or leave it out",
			c.sources[i].name, formatCount(epochs), formatCount(float64(c.steps)))
	}
	arrays := 0
	for _, s := range c.sources {
		arrays += len(s.arrays)
	}
	samples := min(max(int64(maxLookups/float64(arrays)/asked), 8), total)
	weight := float64(total) / float64(samples) / float64(c.hosts)
	r := rand.New(rand.NewPCG(uint64(i), uint64(column)))
	for s := range samples {
		if ctx.Err() != nil {
			return command.ErrInterrupted
		}
		number := s
		if samples < total {
			number = min(int64((float64(s)+r.Float64())*float64(total)/float64(samples)), total-1)
		}
		f := sort.Search(len(files), func(f int) bool { return before[f+1] > number })
		from := (number - before[f]) * size
		to := min(from+size, files[f])
		block := blockElements{source: i}
		block.begin, block.end = a.ElementsIn(f, from, to)
		needs, err := c.needsOf(block, n.steps, r)
		if err != nil {
			return err
		}
		n.addMisses(needs, weight, weight*float64(to-from))
		progress(1 / float64(samples) / float64(arrays))
	}
	return nil
}

// rowsOf returns how many rows of some steps, over all hosts, come from a source.
func (c *corpus) rowsOf(source int, from, to uint64) (rows float64) {
	phases, perStep := c.sequence.Phases(), float64(c.sequence.BatchSize*c.sequence.World)/float64(c.sequence.Hosts())
	for i, at := range phases {
		begin, end := max(float64(at.Row), float64(from)*perStep), float64(to)*perStep
		if i+1 < len(phases) {
			end = min(end, float64(phases[i+1].Row))
		}
		rows += max(end-begin, 0) * at.Fraction(source) * float64(c.sequence.Hosts())
	}
	return rows
}

// rowsPerStep returns how many rows of a step of the run, over all hosts, come from a source.
func (c *corpus) rowsPerStep(source int) float64 {
	return c.rowsOf(source, 0, c.steps) / float64(c.steps)
}

// needsOf returns which hosts need a block in which of the first steps, sorted by host and step.
func (c *corpus) needsOf(block blockElements, steps uint64, r *rand.Rand) (needs []need, err error) {
	q := c.sequence
	if q.Order == sampler.Shuffle || q.Order == sampler.Sequential {
		needs, err = c.findNeeds(block, steps)
	} else {
		// Rows are drawn with replacement, so needs occur at random, at the rate at which windows
		// touch the block.
		starts := float64(c.sequence.StartsOf(block.source))
		rate := c.rowsPerStep(block.source) * min((float64(block.end-block.begin)+c.stride())/starts, 1)
		for step := r.ExpFloat64() / rate; step < float64(steps); step += r.ExpFloat64() / rate {
			needs = append(needs, need{r.IntN(c.hosts), uint64(step)})
		}
	}
	slices.SortFunc(needs, func(a, b need) int { return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.step, b.step)) })
	return needs, err
}

// findNeeds is like needsOf, for orders that Find can invert, but does not sort.
func (c *corpus) findNeeds(block blockElements, steps uint64) (needs []need, err error) {
	for epoch := uint64(0); ; epoch++ {
		known := len(needs)
		for pos := block.begin; pos < block.end; pos = min(pos+int64(c.stride()), max(block.end-1, pos+1)) {
			hits, err := c.sequence.Find(block.source, pos, epoch, nil)
			if err != nil {
				return nil, err
			}
			for _, hit := range hits {
				if k, rank, _ := c.sequence.BatchOf(hit.Row); k < steps {
					needs = append(needs, need{rank / c.ranksPerHost, k})
				}
			}
		}
		if len(needs) == known {
			return needs, nil
		}
	}
}

// addMisses adds the misses of a block, given its sorted needs. Each miss represents these
// numbers of blocks and bytes.
func (n *blockCounts) addMisses(needs []need, blocks, bytes float64) {
	var first, gap uint64
	for i, next := range needs {
		if i == 0 || needs[i-1].host != next.host {
			first, gap = next.step, 0
		} else if gap = next.step - needs[i-1].step; float64(gap) <= n.stepsInMemory {
			continue
		}
		n.misses = append(n.misses, memoryMiss{step: next.step, firstNeed: first, gap: gap, blocks: blocks, bytes: bytes})
	}
}

// stride returns the distance between the starts of adjacent rows that do not overlap, in elements.
func (c *corpus) stride() float64 {
	if c.sequence.Layout == sampler.Rows {
		return 1
	}
	return float64(c.sequence.BlockSize)
}

// fullAt returns the step at which a cache directory of limit bytes is full (MaxUint64 if never),
// and the bytes that a host needs in all. The directory keeps the blocks that were needed first.
func (n *blockCounts) fullAt(limit int64) (step uint64, needed float64) {
	step = math.MaxUint64
	for _, m := range n.misses {
		if m.step == m.firstNeed {
			if needed += m.bytes; needed > float64(limit) {
				step = min(step, m.step)
			}
		}
	}
	return step, needed
}

// visitFetches calls visit for each miss whose block comes from the store, given a cache directory
// of limit bytes. Blocks in the directory take no memory, so memory holds other blocks for longer.
func (n *blockCounts) visitFetches(limit int64, visit func(m memoryMiss)) {
	full, needed := n.fullAt(limit)
	held := n.stepsInMemory / max(1-float64(limit)/needed, 1e-9)
	for _, m := range n.misses {
		if m.step == m.firstNeed || m.firstNeed >= full && float64(m.gap) > held {
			visit(m)
		}
	}
}
