package plan

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"batchfs/cache/array"
	"batchfs/sampler"
)

// What is counted of a run. A host's figures are the mean of all hosts.
type count struct {
	perBatch, perStep float64 // blocks that hold a batch of one rank, and the batches of a host's ranks in a step
	first             int     // blocks of a host's first step
	cold              float64 // blocks that a host has not seen before, of each of its first steps
	stored            float64 // how many steps later the memory of a host still has a block
	blocks, bytes     int64   // of the corpus
	steps             uint64  // that touches are of: 0 to steps-1
	touches           []touch
}

func (n *count) blockBytes() float64 { return float64(n.bytes) / float64(n.blocks) }

// A touch says that hosts need a block that is not in their memory. It stands for others: for so many of each host.
type touch struct {
	step, first uint64 // first: when the host needed the block first
	after       uint64 // steps after it needed it last
	blocks      float64
	bytes       float64 // of all those blocks
}

const (
	countedSteps = 20_000  // rows of a stretch of steps
	searched     = 500_000 // times that the sampler is asked where an element is read
)

// count counts the blocks of steps below a number: of stretches of steps all of them, and of some blocks, evenly spaced, all steps that
// need them. The same sampler decides as in a mount. progress is told the share that is done.
func (c *corpus) count(ctx context.Context, steps uint64, progress func(done float64)) (*count, error) {
	n := &count{steps: steps}
	for i := range 4 {
		if err := c.countBatch(steps/4*uint64(i), i == 0, n); err != nil {
			return nil, err
		}
	}
	for i, s := range c.sources {
		for column := range s.arrays {
			if err := c.search(ctx, n, i, column, progress); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(n.touches, func(a, b touch) int { return cmp.Compare(a.step, b.step) })
	return n, nil
}

// countBatch counts the blocks of the first host in some steps from k on.
func (c *corpus) countBatch(k uint64, first bool, n *count) error {
	type block struct {
		source, column, file int
		number               int64
	}
	var ranks []*sampler.Sequence
	for rank := range c.ranks {
		s := c.sequence.Settings
		s.Rank = rank
		q, err := c.sequence.With(s)
		if err != nil {
			return err
		}
		ranks = append(ranks, q)
	}
	steps := min(max(countedSteps/(c.ranks*c.sequence.BatchSize), 1), 100)
	seen := map[block]bool{}
	// A block stays in memory while it is among those that are known to be needed next: as many as memory holds, and as many again of each
	// rank. Of more than twice as many, memory would not hold those that are needed again.
	known := (1 + min(c.ranks, 2)) * c.blocks.MaxBuffers()
	var perBatch, perStep, kept int
	for i := range steps {
		step := map[block]bool{}
		for _, q := range ranks {
			batch := map[block]bool{}
			q.Windows(k+uint64(i), func(source, column int, w array.Window) bool {
				c.sources[source].arrays[column].Blocks(w, c.blocks.BlockBytes, func(file int, number int64) {
					now := block{source, column, file, number}
					batch[now], step[now], seen[now] = true, true, true
				})
				return true
			})
			perBatch += len(batch)
		}
		if perStep += len(step); first && i == 0 {
			n.first = len(step)
		}
		if len(seen) <= known {
			kept = i
		}
	}
	if kept == steps-1 {
		kept = steps * known / len(seen)
	}
	n.perBatch += float64(perBatch) / float64(steps*c.ranks) / 4
	n.perStep += float64(perStep) / float64(steps) / 4
	n.stored += float64(kept) / 4
	if first {
		n.cold = float64(len(seen)) / float64(steps)
	}
	return nil
}

// A need is a step in which a host needs a block.
type need struct {
	host int
	step uint64
}

// An extent is the elements of a source that a block holds.
type extent struct {
	source     int
	begin, end int64
}

// search finds the steps and hosts that need some blocks of an array.
func (c *corpus) search(ctx context.Context, n *count, i, column int, progress func(done float64)) error {
	a := c.sources[i].arrays[column]
	size, files := c.blocks.BlockBytes, a.FileBytes()
	before := make([]int64, len(files)+1) // blocks of the files before each
	for f, bytes := range files {
		before[f+1] = before[f] + (bytes+size-1)/size
		n.bytes += bytes
	}
	all := before[len(files)]
	n.blocks += all

	elements := float64(a.Len()) / float64(all) // of a block
	asked := (elements/c.step() + 2) * (float64(n.steps)*c.rowsPerStep(i)/float64(c.sources[i].windows) + 1)
	arrays := 0
	for _, s := range c.sources {
		arrays += len(s.arrays)
	}
	samples := min(max(int64(searched/float64(arrays)/asked), 8), all)
	weight := float64(all) / float64(samples) / float64(c.hosts)
	r := rand.New(rand.NewPCG(uint64(i), uint64(column)))
	for s := range samples {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		at := s
		if samples < all {
			at = min(int64((float64(s)+r.Float64())*float64(all)/float64(samples)), all-1)
		}
		f := sort.Search(len(files), func(f int) bool { return before[f+1] > at })
		from := (at - before[f]) * size
		to := min(from+size, files[f])
		block := extent{source: i}
		block.begin, block.end = a.Between(f, from, to)
		needs, err := c.needsOf(block, n.steps, r)
		if err != nil {
			return err
		}
		n.add(needs, weight, weight*float64(to-from))
		progress(1 / float64(samples) / float64(arrays))
	}
	return nil
}

// rowsPerStep is how many rows of a step, of all hosts, are of a source.
func (c *corpus) rowsPerStep(source int) float64 {
	rows, of := c.sequence.Weight(source)
	return float64(c.sequence.BatchSize*c.sequence.World) * float64(rows) / float64(of)
}

// needsOf are the needs of a block in steps below a number, by host and step.
func (c *corpus) needsOf(block extent, steps uint64, r *rand.Rand) (needs []need, err error) {
	q := c.sequence
	if q.Order == sampler.Shuffle || q.Order == sampler.Sequential {
		needs, err = c.found(block, steps)
	} else { // These draw with replacement: at any time a block is needed as often as windows that touch it are drawn.
		a := c.sources[block.source].arrays[0]
		starts := float64(a.Len()) - float64(len(a.Extents()))*c.step()
		rate := c.rowsPerStep(block.source) * min((float64(block.end-block.begin)+c.step())/starts, 1)
		for step := r.ExpFloat64() / rate; step < float64(steps); step += r.ExpFloat64() / rate {
			needs = append(needs, need{r.IntN(c.hosts), uint64(step)})
		}
	}
	slices.SortFunc(needs, func(a, b need) int { return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.step, b.step)) })
	return needs, err
}

// found are the needs of a block in steps below a number, under an order that says where an element is read.
func (c *corpus) found(block extent, steps uint64) (needs []need, err error) {
	for epoch := uint64(0); ; epoch++ {
		was := len(needs)
		for pos := block.begin; pos < block.end; pos = min(pos+int64(c.step()), max(block.end-1, pos+1)) {
			hits, err := c.sequence.Find(block.source, pos, epoch, nil)
			if err != nil {
				return nil, err
			}
			for _, hit := range hits {
				if k, rank, _ := c.sequence.BatchOf(hit.Row); k < steps {
					needs = append(needs, need{rank / c.ranks, k})
				}
			}
		}
		if len(needs) == was {
			return needs, nil
		}
	}
}

// add adds the touches of a block, by its needs in order. Each stands for so many blocks and bytes.
func (n *count) add(needs []need, blocks, bytes float64) {
	var first, after uint64
	for i, now := range needs {
		if i == 0 || needs[i-1].host != now.host {
			first, after = now.step, 0
		} else if after = now.step - needs[i-1].step; float64(after) <= n.stored {
			continue
		}
		n.touches = append(n.touches, touch{step: now.step, first: first, after: after, blocks: blocks, bytes: bytes})
	}
}

// step is how many elements of a row the next disjoint row does not have.
func (c *corpus) step() float64 {
	if c.sequence.Layout == sampler.Elements {
		return 1
	}
	return float64(c.sequence.BlockSize)
}

// fullAt is the step at which a directory of so many bytes is full on a host, and all bytes that it needs. What it needs first until then is
// kept.
func (n *count) fullAt(limit int64) (step uint64, needed float64) {
	step = math.MaxUint64
	for _, t := range n.touches {
		if t.step == t.first {
			if needed += t.bytes; needed > float64(limit) {
				step = min(step, t.step)
			}
		}
	}
	return step, needed
}

// fetches calls visit for the touches whose block is fetched from the store, with a directory of so many bytes. What the directory has takes
// no memory, which so keeps the other blocks for longer.
func (n *count) fetches(limit int64, visit func(t touch)) {
	full, needed := n.fullAt(limit)
	kept := n.stored / max(1-float64(limit)/needed, 1e-9)
	for _, t := range n.touches {
		if t.step == t.first || t.first >= full && float64(t.after) > kept {
			visit(t)
		}
	}
}
