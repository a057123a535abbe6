package bpe

import (
	"math/bits"
	"slices"

	"batchfs/internal/minheap"
)

// merges are the pairs of tokens that a vocabulary joins: a hash table with open addressing, which is less than half full.
type merges struct {
	pairs []pair
	shift int
	maybe [1 << (maybeBits - 6)]uint64 // a bit for each hash that a pair has: most look-ups are of none, and these bits stay in the caches
}

type pair struct {
	key   uint64 // left<<32 | right, plus 1: 0 is a free place
	merge uint64 // rank<<32 | the token that the two become
}

const (
	maybeBits = 20
	none      = ^uint32(0) // no token
	noMerge   = ^uint64(0)
)

func newMerges(pairs []pair) *merges {
	size := bits.Len(uint(2 * len(pairs)))
	m := &merges{pairs: make([]pair, 1<<size), shift: 64 - size}
	for _, p := range pairs {
		*m.place(p.key) = p
		bit := hash(p.key) >> (64 - maybeBits)
		m.maybe[bit/64] |= 1 << (bit % 64)
	}
	return m
}

func key(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) + 1 }

func hash(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 }

// place returns where a key is, or the free place where it would be.
func (m *merges) place(key uint64) *pair {
	for i := hash(key) >> m.shift; ; i = (i + 1) & uint64(len(m.pairs)-1) {
		if p := &m.pairs[i]; p.key == key || p.key == 0 {
			return p
		}
	}
}

// find returns rank<<32 | token of a pair, or noMerge.
func (m *merges) find(left, right uint32) uint64 {
	key := key(left, right)
	if bit := hash(key) >> (64 - maybeBits); m.maybe[bit/64]>>(bit%64)&1 == 0 {
		return noMerge
	}
	if p := m.place(key); p.key != 0 {
		return p.merge
	}
	return noMerge
}

// longest is the length of the longest piece for which looking at all its pairs before each merge is faster than a queue.
const longest = 128

// A merger makes the tokens of a piece. It holds what it works on, so that short pieces need no memory.
type merger struct {
	tokens [longest]uint32
	merges [longest]uint64 // of each token and the next; of the last, noMerge
}

func (w *merger) append(tokens []uint32, t *Tokenizer, piece []byte) []uint32 {
	if token, ok := t.whole[string(piece)]; ok {
		return append(tokens, token)
	}
	n := len(piece)
	if n > longest {
		return appendLong(tokens, t, piece)
	}
	for i, b := range piece {
		w.tokens[i] = t.bytes[b]
	}
	for i := range n - 1 {
		w.merges[i] = t.byteMerges[uint16(piece[i])<<8|uint16(piece[i+1])]
	}
	w.merges[n-1] = noMerge
	for {
		first := slices.Min(w.merges[:n]) // without a branch, which an index would need
		if first == noMerge {
			return append(tokens, w.tokens[:n]...)
		}
		at := slices.Index(w.merges[:n], first)
		w.tokens[at] = uint32(first)
		copy(w.tokens[at+1:], w.tokens[at+2:n])
		copy(w.merges[at:], w.merges[at+1:n])
		n--
		if at < n-1 {
			w.merges[at] = t.merges.find(w.tokens[at], w.tokens[at+1])
		}
		if at > 0 {
			w.merges[at-1] = t.merges.find(w.tokens[at-1], w.tokens[at])
		}
	}
}

// A link is a token in the list that a long piece is.
type link struct {
	token      uint32
	prev, next int32  // -1: there is none
	merge      uint64 // with the next
}

// appendLong appends the tokens of a long piece. It takes the merges from a queue, in n log n time,
// because there are pieces of a hundred thousand spaces. The queue may hold merges that an earlier
// one made impossible: their rank no longer matches the link's.
func appendLong(tokens []uint32, t *Tokenizer, piece []byte) []uint32 {
	links := make([]link, len(piece))
	var q minheap.Heap // rank<<32 | position of each merge: lowest rank first, then leftmost
	look := func(i int32) {
		links[i].merge = noMerge
		if next := links[i].next; next >= 0 {
			if merge := t.merges.find(links[i].token, links[next].token); merge != noMerge {
				links[i].merge = merge
				q.Push(merge&^uint64(none) | uint64(i))
			}
		}
	}
	for i, b := range piece {
		links[i] = link{token: t.bytes[b], prev: int32(i) - 1, next: int32(i) + 1}
	}
	links[len(links)-1].next = -1
	for i := range links {
		look(int32(i))
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
			look(i)
			if l.prev >= 0 {
				look(l.prev)
			}
		}
	}
	for i := int32(0); i >= 0; i = links[i].next {
		tokens = append(tokens, links[i].token)
	}
	return tokens
}
