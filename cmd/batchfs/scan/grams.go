package scan

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
)

// A gram is gramTokens consecutive tokens. From the gramsInRun grams in each run of minRun tokens,
// the gram with the smallest hash is selected, or the last of several, as by a winnower. Two files
// that share a run select the same gram from it.
const (
	minRun     = 64
	gramsInRun = minRun / 2
	gramTokens = minRun - gramsInRun + 1
)

// dull replaces the hash of a gram that repeats one token. As the largest hash, it is selected only
// from a run without other grams.
const dull = math.MaxUint64

type selectedGram struct {
	at   int64
	hash uint64
}

// selectGrams calls visit with the grams selected from the runs that begin at the indexes [from,
// to) of a file, in order, some at a time. The file begins at position start. If cache is not nil,
// it holds the tokens last read, for visit to use.
func selectGrams(ctx context.Context, f *checkedFile, start, from, to int64, cache *blockCache, visit func([]selectedGram) error) error {
	if from >= to {
		return nil
	}
	baseToGram, hashOfOnes := uint64(1), uint64(0)
	for range gramTokens {
		baseToGram *= hashBase
		hashOfOnes = (hashOfOnes + 1) * hashBase
	}
	d := decoder{dtype: f.dtype}
	// A key is a hash whose lowest bits hold the key's index in keys instead, subtracted from
	// lowBits, so that the last of equal hashes has the smallest key.
	const lowBits = 2*decodedBatch - 1
	recent, keys := make([]uint64, gramTokens, gramTokens+decodedBatch), make([]uint64, gramsInRun-1+decodedBatch)
	for i := range keys {
		keys[i] = uint64(lowBits - i)
	}
	var selected []selectedGram
	lastSum, least, leastAt := uint64(0), keys[gramsInRun-2], gramsInRun-2
	return read(ctx, f.array, from, min(to+minRun-1, f.numbers), func(at int64, raw []byte) error {
		if cache != nil {
			cache.file, cache.at, cache.raw = f, at, raw
		}
		for tokens := range d.batches(raw) {
			recent = append(recent[:gramTokens], tokens...)
			n, sum, out, old := len(tokens), lastSum, keys[gramsInRun-1:][:len(tokens)], recent[:len(tokens)]
			for i, v := range tokens {
				sum = (sum + (v - old[i]*baseToGram)) * hashBase
				hash := sum
				if sum == v*hashOfOnes {
					hash = dull
				}
				out[i] = hash&^lowBits | uint64(lowBits-gramsInRun+1-i)
			}
			selected = selected[:0]
			for i := 0; i < n; i++ {
				// The run that ends with token i has the keys from i on.
				if leastAt < i {
					least = slices.Min(keys[i:][:gramsInRun])
				} else if key := keys[i+gramsInRun-1]; key < least {
					least = key
				} else {
					continue
				}
				leastAt = lowBits - int(least&lowBits)
				// Grams before from were hashed without their first tokens.
				if index := at + int64(leastAt) - minRun + 1; index >= from {
					selected = append(selected, selectedGram{start + index, least | lowBits})
				}
			}
			if err := visit(selected); err != nil {
				return err
			}
			copy(recent, recent[len(tokens):])
			for i := range gramsInRun - 1 {
				keys[i] = keys[n+i] + uint64(n)
			}
			lastSum, least, leastAt, at = sum, least+uint64(n), leastAt-n, at+int64(n)
		}
		return nil
	})
}

const (
	// A gram that occurs more than maxOccurrences times in the searched files is boilerplate.
	maxOccurrences = 16
	// A gramTable holds at most maxSame grams with the same hash. They are copies of one text.
	maxSame = 64
	// About one in 16 tokens begins a selected gram, and more where tokens repeat at short
	// distances.
	tokensPerSlot = 11
)

// A gramTable is a hash table with the positions of the grams selected from a part of a split. It
// takes 0.8 bytes per token of the part. After the last add, its methods are safe for concurrent
// use.
type gramTable struct {
	// From the highest bit down, a slot has 32 bits for the position plus one, 27 bits of the hash,
	// and 5 bits that count occurrences, in the first slot for a hash. Empty slots are 0.
	slots  []uint64
	used   int      // slots that are not empty
	list   []int    // reused by add
	filter []uint64 // two bits are set for each hash; small enough for the processor's cache
}

const tagMask = (1<<27 - 1) << 5

var errFull = errors.New("table is full")

func newGramTable(tokens int64) *gramTable {
	return &gramTable{slots: make([]uint64, tokens/tokensPerSlot+2*minRun), filter: make([]uint64, tokens/128+1)}
}

// home returns the index of the slot where the search for a hash begins, and the bits of the hash
// that slots hold.
func (t *gramTable) home(hash uint64) (slot int, tag uint64) {
	high, low := bits.Mul64(hash*hashBase, uint64(len(t.slots)))
	return int(high), low >> 32 & tagMask
}

// filterBits returns the index of a hash's word in the filter, and the numbers of its two bits.
func (t *gramTable) filterBits(hash uint64) (word int, a, b uint64) {
	high, low := bits.Mul64(hash*hashBase, uint64(len(t.filter)))
	return int(high), low >> 58, low >> 52 & 63
}

// candidates returns the grams in list that may be in the table, and overwrites list. Its loops
// have no branches, so that the processor waits for many loads from memory at a time.
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

// find returns the indexes of the slots for a hash, or only the first one if it is boilerplate.
// empty is the index of the slot to add the hash to, and tag the bits of the hash to write there.
// find reuses list.
func (t *gramTable) find(hash uint64, list []int) (found []int, empty int, tag uint64) {
	list = list[:0]
	i, tag := t.home(hash)
	for {
		slot := uint64(0)
		if i, slot = t.next(i, tag); slot == 0 {
			return list, i, tag
		}
		if list = append(list, i); slot&31 > maxOccurrences {
			return list, i, tag
		}
		i++
	}
}

// next returns the first slot from index i on that is empty or has the bits of tag.
func (t *gramTable) next(i int, tag uint64) (index int, slot uint64) {
	for ; ; i++ {
		if i == len(t.slots) {
			i = 0
		}
		if slot := atomic.LoadUint64(&t.slots[i]); slot == 0 || slot&tagMask == tag {
			return i, slot
		}
	}
}

func (t *gramTable) position(slot int) int64 { return int64(atomic.LoadUint64(&t.slots[slot])>>32) - 1 }

// add adds the gram at a position, unless there are enough with the same hash. It returns errFull
// if the table is full.
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

// count counts an occurrence of the hash with this first slot, and reports whether it is
// boilerplate.
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

// isBoilerplate reports whether more than maxOccurrences occurrences of a hash were counted.
func (t *gramTable) isBoilerplate(hash uint64) bool {
	_, slot := t.next(t.home(hash))
	return slot&31 > maxOccurrences
}
