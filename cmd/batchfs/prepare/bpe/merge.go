package bpe

import (
	"math/bits"
	"slices"

	"batchfs/internal/minheap"
)

// merges holds the pairs of tokens that a vocabulary joins, in a hash table with open addressing.
type merges struct {
	pairs     []pair
	hashShift int
	// filter has a bit for each hash of a pair. Most lookups fail, and the filter stays in the
	// processor's caches.
	filter [1 << (filterBits - 6)]uint64
}

type pair struct {
	key   uint64 // left<<32 | right, plus 1; 0 in an empty entry
	merge uint64 // rank<<32 | token of the joined pair
}

const (
	filterBits = 20
	noToken    = ^uint32(0)
	noMerge    = ^uint64(0)
)

func newMerges(pairs []pair) *merges {
	size := bits.Len(uint(2 * len(pairs)))
	m := &merges{pairs: make([]pair, 1<<size), hashShift: 64 - size}
	for _, p := range pairs {
		*m.locate(p.key) = p
		bit := hashKey(p.key) >> (64 - filterBits)
		m.filter[bit/64] |= 1 << (bit % 64)
	}
	return m
}

func pairKey(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) + 1 }

func hashKey(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 }

// locate returns the entry of a key, or the empty entry where it belongs.
func (m *merges) locate(key uint64) *pair {
	for i := hashKey(key) >> m.hashShift; ; i = (i + 1) & uint64(len(m.pairs)-1) {
		if p := &m.pairs[i]; p.key == key || p.key == 0 {
			return p
		}
	}
}

// find returns rank<<32 | token of a pair, or noMerge.
func (m *merges) find(left, right uint32) uint64 {
	key := pairKey(left, right)
	if bit := hashKey(key) >> (64 - filterBits); m.filter[bit/64]>>(bit%64)&1 == 0 {
		return noMerge
	}
	if p := m.locate(key); p.key != 0 {
		return p.merge
	}
	return noMerge
}

// maxScanned is the longest piece, in bytes, for which scanning all pairs before each merge beats a
// queue.
const maxScanned = 128

// A merger computes the tokens of a piece. It owns the memory for short pieces.
type merger struct {
	tokens [maxScanned]uint32
	merges [maxScanned]uint64 // merge of each token and the next one; noMerge for the last
}

func (m *merger) append(tokens []uint32, t *Tokenizer, piece []byte) []uint32 {
	if token, ok := t.wholePieces[string(piece)]; ok {
		return append(tokens, token)
	}
	n := len(piece)
	if n > maxScanned {
		return appendLong(tokens, t, piece)
	}
	if t.byteMerges != nil {
		for i, b := range piece {
			m.tokens[i] = t.byteTokens[b]
		}
		for i := range n - 1 {
			m.merges[i] = t.byteMerges[uint16(piece[i])<<8|uint16(piece[i+1])]
		}
	} else {
		if n = len(t.appendSymbols(m.tokens[:0], piece)); n == 0 {
			return tokens
		}
		for i := range n - 1 {
			m.merges[i] = t.merges.find(m.tokens[i], m.tokens[i+1])
		}
	}
	m.merges[n-1] = noMerge
	for {
		// Min has no branches, so Min and then Index is faster than one loop that tracks both.
		first := slices.Min(m.merges[:n])
		if first == noMerge {
			return append(tokens, m.tokens[:n]...)
		}
		i := slices.Index(m.merges[:n], first)
		m.tokens[i] = uint32(first)
		copy(m.tokens[i+1:], m.tokens[i+2:n])
		copy(m.merges[i:], m.merges[i+1:n])
		n--
		if i < n-1 {
			m.merges[i] = t.merges.find(m.tokens[i], m.tokens[i+1])
		}
		if i > 0 {
			m.merges[i-1] = t.merges.find(m.tokens[i-1], m.tokens[i])
		}
	}
}

// appendSymbols appends the tokens with which merging begins.
func (t *Tokenizer) appendSymbols(tokens []uint32, piece []byte) []uint32 {
	if t.pieces != nil {
		return t.pieces.appendChars(tokens, piece, &t.byteTokens)
	}
	unknown := false // whether t.unknown stands for the previous byte
	for _, b := range piece {
		token := t.byteTokens[b]
		if token != noToken {
			unknown = false
		} else if token = t.unknown; token != noToken {
			if unknown && t.fuseUnknown {
				continue
			}
			unknown = true
		}
		if token != noToken {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// A link is a token of a long piece.
type link struct {
	token      uint32
	prev, next int32  // indexes of links; -1 at the ends
	merge      uint64 // merge of this token and the next one
}

// appendLong appends the tokens of a long piece, such as a hundred thousand spaces, in n log n
// time. A merge in the queue may have become impossible; its rank then no longer matches the
// link's.
func appendLong(tokens []uint32, t *Tokenizer, piece []byte) []uint32 {
	symbols := t.appendSymbols(make([]uint32, 0, len(piece)), piece)
	if len(symbols) == 0 {
		return tokens
	}
	links := make([]link, len(symbols))
	// The queue has rank<<32 | position of each merge, so the leftmost of equal ranks is first.
	q := make(minheap.Heap, 0, len(symbols))
	updateMerge := func(i int32) {
		links[i].merge = noMerge
		if next := links[i].next; next >= 0 {
			if merge := t.merges.find(links[i].token, links[next].token); merge != noMerge {
				links[i].merge = merge
				q.Push(merge&^uint64(noToken) | uint64(i))
			}
		}
	}
	for i, token := range symbols {
		links[i] = link{token: token, prev: int32(i) - 1, next: int32(i) + 1}
	}
	links[len(links)-1].next = -1
	for i := range links {
		updateMerge(int32(i))
	}
	for len(q) > 0 {
		first := q.Pop()
		i := int32(uint32(first))
		if l := &links[i]; l.merge != noMerge && l.merge>>32 == first>>32 {
			gone := l.next
			l.token, l.next = uint32(l.merge), links[gone].next
			links[gone].merge = noMerge
			if l.next >= 0 {
				links[l.next].prev = i
			}
			updateMerge(i)
			if l.prev >= 0 {
				updateMerge(l.prev)
			}
		}
	}
	for i := int32(0); i >= 0; i = links[i].next {
		tokens = append(tokens, links[i].token)
	}
	return tokens
}
