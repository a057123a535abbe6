package scan

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"sync/atomic"
)

// A gram consists of gramTokens consecutive tokens. Each run of minRun tokens has gramsInRun grams,
// of which the one with the smallest hash is selected, as by a winnower. Files that share a run
// thus select the same gram of it. If hashes are equal, the last gram is selected.
const (
	minRun     = 64
	gramsInRun = minRun / 2
	gramTokens = minRun - gramsInRun + 1
)

// dull replaces the hashes of grams of one repeated token, which are selected only if a run has no
// others.
const dull = math.MaxUint64

type selectedGram struct {
	at   int64
	hash uint64
}

// selectGrams calls visit with the selected grams of the runs of a file that begin at [from, to),
// some at a time, in order. start is the position of the file; cache is nil or keeps what was read.
func selectGrams(ctx context.Context, f *checkedFile, start, from, to int64, cache *blockCache, visit func([]selectedGram) error) error {
	if from >= to {
		return nil
	}
	const batch = 4096
	baseToGram, hashOfOnes := uint64(1), uint64(0)
	for range gramTokens {
		baseToGram *= hashBase
		hashOfOnes = (hashOfOnes + 1) * hashBase
	}
	baseToGram *= hashBase
	d, size := decoder{dtype: f.array.DType()}, f.array.DType().Size()
	// A key is a hash whose lowest bits are replaced by lowBits minus the key's index in keys.
	const lowBits = 2*batch - 1
	recent, keys := make([]uint64, gramTokens, gramTokens+batch), make([]uint64, gramsInRun-1+batch)
	for i := range keys {
		keys[i] = uint64(lowBits - i)
	}
	var selected []selectedGram
	lastSum, last := uint64(0), uint64(0)
	return read(ctx, f.array, from, min(to+minRun-1, f.numbers), func(at int64, raw []byte) error {
		if cache != nil {
			cache.file, cache.at, cache.raw = f, at, raw
		}
		for len(raw) > 0 {
			tokens := d.decode(raw[:min(len(raw), batch*size)])
			raw, recent = raw[len(tokens)*size:], append(recent[:gramTokens], tokens...)
			n, sum, out, old := len(tokens), lastSum, keys[gramsInRun-1:][:len(tokens)], recent[:len(tokens)]
			for i, v := range tokens {
				sum = sum*hashBase + (v*hashBase - old[i]*baseToGram)
				hash := sum
				if sum == v*hashOfOnes {
					hash = dull
				}
				out[i] = hash&^lowBits | uint64(lowBits-gramsInRun+1-i)
			}
			selected = selected[:0]
			for i := 0; i < n; i += gramsInRun {
				// The keys of a run are the last ones of block and the first ones after it.
				block, beforeEnd, afterEnd := keys[i:][:gramsInRun], [gramsInRun]uint64{}, uint64(math.MaxUint64)
				for j := gramsInRun - 1; j >= 0; j-- {
					afterEnd = min(afterEnd, block[j])
					beforeEnd[j] = afterEnd
				}
				afterEnd = math.MaxUint64
				for j, key := range keys[i+gramsInRun-1:][:min(gramsInRun, n-i)] {
					afterEnd = min(afterEnd, key)
					least := min(beforeEnd[j], afterEnd)
					if least == last {
						continue
					}
					last = least
					// Grams that begin before from are not in the file, or hashed in part.
					if index := at + lowBits - int64(least&lowBits) - minRun + 1; index >= from {
						selected = append(selected, selectedGram{start + index, least | lowBits})
					}
				}
			}
			if err := visit(selected); err != nil {
				return err
			}
			copy(recent, recent[len(tokens):])
			for i := range gramsInRun - 1 {
				keys[i] = keys[n+i] + uint64(n)
			}
			lastSum, last, at = sum, last+uint64(n), at+int64(n)
		}
		return nil
	})
}

const (
	// A gram that occurs more often in the searched files is boilerplate.
	maxOccurrences = 16
	// A gramTable holds this many grams with the same hash. Others are in copies of the same text.
	maxSame = 64
	// One in 16 tokens begins a selected gram, unless many tokens repeat with a short period.
	tokensPerSlot = 11
)

// A gramTable finds the selected grams of a part of a split by hash. It takes 0.8 bytes for each
// token. Searches can be concurrent.
type gramTable struct {
	// A slot holds the position of a gram, plus one, in 32 bits, then 27 bits of the hash and, in
	// the first slot for a hash, 5 bits with the number of its occurrences.
	slots  []uint64
	used   int
	list   []int
	filter []uint64 // has two bits for each hash, and fits in the processor's cache
}

const tagMask = (1<<27 - 1) << 5

var errFull = errors.New("table is full")

func newGramTable(tokens int64) *gramTable {
	return &gramTable{slots: make([]uint64, tokens/tokensPerSlot+2*minRun), filter: make([]uint64, tokens/128+1)}
}

// home returns the slot in which the search for a hash begins, and what slots hold of the hash.
func (t *gramTable) home(hash uint64) (slot int, tag uint64) {
	high, low := bits.Mul64(hash*hashBase, uint64(len(t.slots)))
	return int(high), low >> 32 & tagMask
}

// filterBits returns which two bits of a word of the filter belong to a hash.
func (t *gramTable) filterBits(hash uint64) (word int, a, b uint64) {
	high, low := bits.Mul64(hash*hashBase, uint64(len(t.filter)))
	return int(high), low >> 58, low >> 52 & 63
}

// candidates moves the grams that may be in the table to the front of list, and returns these. It
// does not branch, so that the processor loads many words at a time.
func (t *gramTable) candidates(list []selectedGram) []selectedGram {
	n := 0
	for _, g := range list {
		word, a, b := t.filterBits(g.hash)
		list[n] = g
		n += int(t.filter[word] >> a & (t.filter[word] >> b) & 1)
	}
	list, n = list[:n], 0
	for _, g := range list {
		i, _ := t.home(g.hash)
		slot := atomic.LoadUint64(&t.slots[i])
		list[n] = g
		n += int((slot | -slot) >> 63)
	}
	return list[:n]
}

// find returns the indexes of the slots for a hash, or only the first one if it is boilerplate, and
// the next empty slot and what it holds of the hash. It reuses list.
func (t *gramTable) find(hash uint64, list []int) (found []int, empty int, tag uint64) {
	list = list[:0]
	for i, tag := t.home(hash); ; i++ {
		if i == len(t.slots) {
			i = 0
		}
		slot := atomic.LoadUint64(&t.slots[i])
		if slot == 0 {
			return list, i, tag
		}
		if slot&tagMask == tag {
			if list = append(list, i); slot&31 > maxOccurrences {
				return list, i, tag
			}
		}
	}
}

func (t *gramTable) position(slot int) int64 { return int64(atomic.LoadUint64(&t.slots[slot])>>32) - 1 }

// add adds a gram. It returns errFull if the table is full.
func (t *gramTable) add(hash uint64, position int64) error {
	if t.used > len(t.slots)/8*7 {
		return errFull
	}
	list, empty, tag := t.find(hash, t.list)
	t.list = list
	if len(list) == maxSame || hash == dull && len(list) > 0 {
		return nil
	}
	word, a, b := t.filterBits(hash)
	t.filter[word] |= 1<<a | 1<<b
	t.slots[empty] = uint64(position+1)<<32 | tag
	t.used++
	return nil
}

// count counts an occurrence of the grams in a slot, and reports whether they are boilerplate.
func (t *gramTable) count(slot int) (boilerplate bool) {
	for {
		old := atomic.LoadUint64(&t.slots[slot])
		if old&31 > maxOccurrences {
			return true
		}
		if atomic.CompareAndSwapUint64(&t.slots[slot], old, old+1) {
			return old&31 == maxOccurrences
		}
	}
}

// isBoilerplate reports whether count was called more than maxOccurrences times for a hash.
func (t *gramTable) isBoilerplate(hash uint64) bool {
	t.list, _, _ = t.find(hash, t.list)
	return len(t.list) > 0 && t.slots[t.list[0]]&31 > maxOccurrences
}
