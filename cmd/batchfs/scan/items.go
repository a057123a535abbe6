package scan

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/terminal"
)

const (
	// An item with fewer than minItem tokens is not searched for.
	minItem = 13
	// freeTokens is how many tokens at each end of an item need not occur, because the text around
	// a copy can change them.
	freeTokens = 2
	// itemGram is the number of consecutive tokens whose hash is looked up. Each item has as many.
	itemGram = minItem - 2*freeTokens
	// itemPart limits the tokens of the items that are searched for at a time. They and their table
	// take up to 1 GiB.
	itemPart = 1 << 26
	// itemOverhead is the memory for an item besides its tokens, in tokens.
	itemOverhead = 128
)

// An Item is a text to search for, such as a question of a benchmark.
type Item struct {
	ItemName
	Text string // beginning of the text
	// Encodings has the tokens of the text, first those of the text by itself. There are more if
	// what precedes the text can change others than its first tokens.
	Encodings [][]uint32
}

// An itemSearch searches files for items. An item occurs where all tokens of one of its encodings
// do, except freeTokens at each end.
//
// From each core, which is what must occur, one gram is in a table by its hash: one that the fewest
// other cores have, so that a phrase that begins many items is not compared for each of them.
type itemSearch struct {
	vocab uint64 // number of different tokens
	items []*Item
	used  int // memory for items, in tokens

	cores  []*itemCore
	byHash map[uint64]*itemCore // by hash of the gram
	filter []uint64             // bits by hash, so that most grams need no search in byHash
}

// An itemCore is what must occur of the items with these tokens.
type itemCore struct {
	tokens []uint32
	gram   int // index of the gram in tokens
	uses   []coreUse
	next   *itemCore // next one with the same hash

	count  atomic.Int64 // occurrences; not all of more than maxOccurrences
	mu     sync.Mutex
	places []itemPlace
}

// A coreUse is an encoding of an item that has a core.
type coreUse struct {
	item   *Item
	tokens []uint32
}

// An itemPlace is where an occurrence of an item's core begins: see coreOf.
type itemPlace struct {
	file  *checkedFile
	index int64
}

func (s *itemSearch) add(item *Item) {
	// An encoding that ends with the core of another one occurs only where that one does.
	var kept [][]uint32
	slices.SortStableFunc(item.Encodings, func(a, b []uint32) int { return len(a) - len(b) })
	for _, tokens := range item.Encodings {
		if len(tokens) < itemGram+freeTokens {
			continue
		}
		if !slices.ContainsFunc(kept, func(k []uint32) bool { return slices.Equal(coreOf(k), lastOf(coreOf(tokens), len(coreOf(k)))) }) {
			kept = append(kept, tokens)
			s.used += len(tokens) + itemOverhead
		}
	}
	item.Encodings = kept
	s.items = append(s.items, item)
}

// coreStart returns the index at which the core of an encoding begins. The core has at least
// itemGram tokens, even if some encodings of an item are shorter than others.
func coreStart(tokens []uint32) int {
	return max(0, min(freeTokens, len(tokens)-freeTokens-itemGram))
}

// coreOf returns the tokens that an occurrence must have: all but freeTokens at each end, or fewer
// at the start of a short encoding.
func coreOf(tokens []uint32) []uint32 { return tokens[coreStart(tokens) : len(tokens)-freeTokens] }

func lastOf(tokens []uint32, n int) []uint32 { return tokens[len(tokens)-n:] }

// run searches all files.
func (s *itemSearch) run(ctx context.Context, parts []part, progress *terminal.Progress) error {
	s.makeTable()
	return doAll(ctx, len(parts), func(i int) error { return s.searchPart(ctx, parts[i], progress) })
}

// grams yields the index and the hash of each gram.
func grams(tokens []uint32, yield func(at int, hash uint64)) {
	var roller gramRoller
	for i, v := range tokens {
		old := uint64(0)
		if i >= itemGram {
			old = uint64(tokens[i-itemGram])
		}
		if roller.roll(uint64(v), old); i >= itemGram-1 {
			yield(i-itemGram+1, roller.hash())
		}
	}
}

// A gramRoller hashes the last itemGram tokens, as by Karp and Rabin.
type gramRoller struct{ sum uint64 }

var itemGramPower = func() uint64 {
	power := uint64(1)
	for range itemGram {
		power *= hashBase
	}
	return power
}()

// roll adds a token, and removes the one that was added itemGram tokens ago, which is 0 at first.
func (r *gramRoller) roll(token, old uint64) { r.sum = r.sum*hashBase + token - old*itemGramPower }

func (r *gramRoller) hash() uint64 { return (r.sum ^ r.sum>>32) * hashBase }

func (s *itemSearch) makeTable() {
	total := 0
	for _, item := range s.items {
		for _, tokens := range item.Encodings {
			total += len(tokens)
		}
	}
	// Counts of different grams may be added up, which does not matter.
	counts := make([]uint8, 1<<bits.Len(uint(2*total)))
	shift := 64 - bits.TrailingZeros(uint(len(counts)))
	for _, item := range s.items {
		for _, tokens := range item.Encodings {
			grams(coreOf(tokens), func(_ int, hash uint64) {
				if n := &counts[hash>>shift]; *n < math.MaxUint8 {
					*n++
				}
			})
		}
	}
	s.cores, s.byHash = nil, map[uint64]*itemCore{}
	for _, item := range s.items {
		for _, tokens := range item.Encodings {
			c := &itemCore{tokens: coreOf(tokens)}
			least, leastCount := uint64(math.MaxUint64), uint8(math.MaxUint8)
			grams(c.tokens, func(at int, hash uint64) {
				if n := counts[hash>>shift]; n < leastCount || n == leastCount && hash <= least {
					c.gram, least, leastCount = at, hash, n
				}
			})
			c = s.addCore(least, c)
			c.uses = append(c.uses, coreUse{item, tokens})
		}
	}
	s.filter = make([]uint64, 1<<max(6, bits.Len(uint(len(s.cores)))))
	for hash := range s.byHash {
		word, bit := s.filterBit(hash)
		s.filter[word] |= bit
	}
}

// addCore adds a core, or returns the one with the same tokens.
func (s *itemSearch) addCore(hash uint64, c *itemCore) *itemCore {
	for same := s.byHash[hash]; same != nil; same = same.next {
		if slices.Equal(same.tokens, c.tokens) {
			return same
		}
	}
	c.next = s.byHash[hash]
	s.byHash[hash] = c
	s.cores = append(s.cores, c)
	return c
}

// filterBit returns the index of a hash's word in the filter, and its bit.
func (s *itemSearch) filterBit(hash uint64) (word int, bit uint64) {
	return int(hash>>32) & (len(s.filter) - 1), 1 << (hash >> 26 & 63)
}

var itemCaches = sync.Pool{New: func() any { return new(blockCache) }}

// searchPart records the occurrences of items whose grams begin in a part of a file.
func (s *itemSearch) searchPart(ctx context.Context, p part, progress *terminal.Progress) error {
	f, d := p.file, decoder{dtype: p.file.dtype}
	cache := itemCaches.Get().(*blockCache)
	defer itemCaches.Put(cache)
	recent := make([]uint64, itemGram, itemGram+decodedBatch)
	var roller gramRoller
	return read(ctx, f.array, p.from, min(p.to+itemGram-1, f.numbers), func(at int64, raw []byte) error {
		cache.file, cache.at, cache.raw, cache.decoder.dtype = f, at, raw, f.dtype
		for tokens := range d.batches(raw) {
			recent = append(recent[:itemGram], tokens...)
			for i, v := range tokens {
				if v >= s.vocab {
					return fmt.Errorf("%s: token %d, at index %d, is not among the %d tokens of the tokenizer, so another one made "+
						"these tokens; name it with --by",
						f.path, int64(v), at+int64(i), s.vocab)
				}
				roller.roll(v, recent[i])
				hash := roller.hash()
				if word, bit := s.filterBit(hash); s.filter[word]&bit == 0 {
					continue
				}
				if index := at + int64(i) - itemGram + 1; index >= p.from {
					for c := s.byHash[hash]; c != nil; c = c.next {
						c.compare(f, index-int64(c.gram), cache)
					}
				}
			}
			copy(recent, recent[len(tokens):])
			at += int64(len(tokens))
		}
		progress.Add(len(raw))
		return nil
	})
}

// compare records an occurrence of the core if it begins at an index of a file.
func (c *itemCore) compare(f *checkedFile, index int64, cache *blockCache) {
	if index < 0 || index+int64(len(c.tokens)) > f.numbers || c.count.Load() > maxOccurrences || !cache.hasTokens(f, index, c.tokens) {
		return
	}
	if c.count.Add(1) > maxOccurrences {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places = append(c.places, itemPlace{f, index})
}

// hasTokens reports whether a file has these tokens at an index.
func (c *blockCache) hasTokens(f *checkedFile, index int64, tokens []uint32) bool {
	for len(tokens) > 0 {
		raw := c.numbers(f, index, false)
		list := c.decoder.decode(raw[:min(len(raw), len(tokens)*f.size)])
		for i, v := range list {
			if v != uint64(tokens[i]) {
				return false
			}
		}
		if len(list) == 0 { // cannot be read
			return false
		}
		tokens, index = tokens[len(list):], index+int64(len(list))
	}
	return true
}

// occurring returns which tokens of an encoding occur where its core begins: n of them, from an
// index of the file on.
func (u coreUse) occurring(p itemPlace) (from int64, n int) {
	begin, first, end := p.index-int64(coreStart(u.tokens)), coreStart(u.tokens), len(u.tokens)-freeTokens
	d, all := decoder{dtype: p.file.dtype}, array.Window{Start: max(begin, 0)}
	all.Len = int(min(begin+int64(len(u.tokens)), p.file.numbers) - all.Start)
	p.file.array.Read([]array.Window{all}, func(_ int, raw []byte) error {
		have := d.decode(raw)
		equal := func(i int) bool {
			at := begin + int64(i) - all.Start
			return i >= 0 && i < len(u.tokens) && at >= 0 && at < int64(len(have)) && have[at] == uint64(u.tokens[i])
		}
		for equal(first - 1) {
			first--
		}
		for equal(end) {
			end++
		}
		return nil
	})
	return begin + int64(first), end - first
}
