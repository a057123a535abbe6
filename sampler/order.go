package sampler

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"sort"

	"batchfs/cache"
)

// Order decides at which token a row begins.
type Order string

const (
	Random     Order = "random"     // uniform over all starts
	Shuffle    Order = "shuffle"    // the disjoint windows, in another order every epoch
	Sequential Order = "sequential" // the disjoint windows, one after the other, again and again
	Torch      Order = "torch"      // the starts that nanoGPT's get_batch draws, with PyTorch from 2.7 on
	Torch26    Order = "torch-2.6"  // and up to 2.6
)

// An order maps the global number of a row to the position of its first token. It is safe for concurrent use.
type order interface {
	start(row uint64) int64
}

// A permutation is an order that has each disjoint window once an epoch.
type permutation interface {
	order
	// inverse is the place of a disjoint window among the rows of an epoch, both counted from 0.
	inverse(epoch, window uint64) uint64
}

// newOrder is that of a source. Each has a stream of its own: that of its split, or where there are several that of a
// split named "split/source", which none is.
func newOrder(s Settings, source int, w windows) (order, error) {
	name := s.Split
	if len(s.Weights) > 1 {
		name = fmt.Sprintf("%s/%d", s.Split, source)
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	key := [2]uint64{s.Seed, h.Sum64()}
	switch s.Order {
	case Sequential:
		return sequential{w}, nil
	case Shuffle:
		return newShuffle(key, w), nil
	case Torch, Torch26:
		if len(s.Weights) > 1 {
			return nil, fmt.Errorf("order %s draws from one array of tokens and cannot mix sources; choose another order", s.Order)
		}
		return newTorch(s, w)
	}
	return random{w, key}, nil
}

type sequential struct{ windows windows }

func (o sequential) start(row uint64) int64 {
	return o.windows.disjointAt(int64(row % uint64(o.windows.disjoint.total())))
}

func (o sequential) inverse(_, window uint64) uint64 { return window }

// random draws row s from the block of Philox4x64-10 at counter (s, 0, 0, 0). Lemire's method ("Fast Random Integer
// Generation in an Interval", 2019) makes its words uniform over the starts; should it reject all four, the block at
// (s, 1, 0, 0) follows, and so on.
type random struct {
	windows windows
	key     [2]uint64 // the seed, and FNV-1a-64 of the split's name
}

func (o random) start(row uint64) int64 {
	n := uint64(o.windows.all.total())
	threshold := -n % n // 2^64 mod n
	for again := uint64(0); ; again++ {
		for _, w := range philox4x64([4]uint64{row, again}, o.key) {
			if start, low := bits.Mul64(w, n); low >= threshold {
				return o.windows.at(int64(start))
			}
		}
	}
}

// philox4x64 is Philox4x64-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).
func philox4x64(c [4]uint64, key [2]uint64) [4]uint64 {
	for range 10 {
		hi0, lo0 := bits.Mul64(0xD2E7470EE14C6C93, c[0])
		hi1, lo1 := bits.Mul64(0xCA5A826395121157, c[2])
		c = [4]uint64{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += 0x9E3779B97F4A7C15
		key[1] += 0xBB67AE8584CAA73B
	}
	return c
}

// windows are the places in an array of tokens at which a row of T tokens and the one after can begin.
type windows struct {
	runs     []cache.Run
	size     int64 // T
	all      ends  // of each run's len-T starts
	disjoint ends  // of each run's (len-1)/T starts, T apart
}

func newWindows(runs []cache.Run, blockSize int) (windows, error) {
	w := windows{runs: runs, size: int64(blockSize)}
	for _, r := range runs {
		if r.Len <= w.size {
			return windows{}, fmt.Errorf("%s: %d tokens, need at least block_size+1 = %d", r.Name, r.Len, w.size+1)
		}
		w.all.add(r.Len - w.size)
		w.disjoint.add((r.Len - 1) / w.size)
	}
	return w, nil
}

// at is the position of start i of all.
func (w windows) at(i int64) int64 {
	run, rest := w.all.find(i)
	return w.runs[run].Start + rest
}

// disjointAt is the position of the i-th disjoint window.
func (w windows) disjointAt(i int64) int64 {
	run, rest := w.disjoint.find(i)
	return w.runs[run].Start + rest*w.size
}

// ends are the running sums of counts.
type ends []int64

func (e *ends) add(n int64) { *e = append(*e, e.total()+n) }

func (e ends) total() int64 {
	if len(e) == 0 {
		return 0
	}
	return e[len(e)-1]
}

// find returns which count i falls in, and how far.
func (e ends) find(i int64) (which int, rest int64) {
	which = sort.Search(len(e), func(j int) bool { return i < e[j] })
	if which > 0 {
		i -= e[which-1]
	}
	return which, i
}
