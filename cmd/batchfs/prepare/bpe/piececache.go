package bpe

import (
	"encoding/binary"
	"math/bits"
	"reflect"
	"slices"
	"syscall"
)

const (
	shortBytes   = 15      // bytes of a piece that fit into an entry
	inlineTokens = 4       // tokens that fit into an entry
	setBits      = 19      // log2 of the number of sets
	maxOverflow  = 1 << 16 // pieces
)

// A pieceCache holds the tokens of pieces encoded before.
type pieceCache struct {
	sets     [][2]pieceTokens    // indexed by a hash; a set fills one line of the processor's cache
	sink     uint64              // keeps the compiler from removing the reads in startLookups
	overflow map[string][]uint32 // pieces that are too long, or have too many tokens, for an entry
}

// A pieceTokens is a cache entry. Its key consists of the bytes of a short piece and their count,
// so entries of different pieces never match.
type pieceTokens struct {
	// The top four bits of keyHigh hold the number of tokens. If that exceeds inlineTokens, the
	// tokens are in the overflow.
	keyLow, keyHigh uint64
	tokens          [inlineTokens]uint32
}

func (e *pieceTokens) matches(low, high uint64) bool { return (e.keyLow^low)|(e.keyHigh^high)<<4 == 0 }

func newPieceCache() pieceCache {
	c := pieceCache{sets: make([][2]pieceTokens, 1<<setBits), overflow: map[string][]uint32{}}
	// With pages of 4 KiB, most lookups would miss the TLB. An error does not matter.
	sets := reflect.ValueOf(c.sets)
	syscall.Syscall(syscall.SYS_MADVISE, sets.Pointer(), uintptr(sets.Len())*sets.Type().Elem().Size(), syscall.MADV_HUGEPAGE)
	return c
}

// shortMasks[n] selects the bytes of a piece of n bytes.
var shortMasks = func() (masks [shortBytes + 1]struct{ low, high uint64 }) {
	for n := range masks {
		masks[n].low, masks[n].high = 1<<(8*min(n, 8))-1, 1<<(8*max(n-8, 0))-1
	}
	return masks
}()

// shortKey returns the key of text[i:end].
func shortKey(text []byte, i, end int) (low, high uint64) {
	var raw *[16]byte
	if i+16 <= len(text) {
		raw = (*[16]byte)(text[i:])
	} else {
		raw = new([16]byte)
		copy(raw[:], text[i:])
	}
	n := end - i
	low, high = binary.LittleEndian.Uint64(raw[:]), binary.LittleEndian.Uint64(raw[8:])
	return low & shortMasks[n].low, high&shortMasks[n].high | uint64(n)<<56
}

func (c *pieceCache) setIndex(low, high uint64) int {
	over, under := bits.Mul64(low^0x9e3779b97f4a7c15, high^0xd1b54a32d192ed03)
	return int((over ^ under) >> (64 - setBits))
}

// A lookup is the key of a piece to find, and the index of its set.
type lookup struct {
	keyLow, keyHigh uint64
	set             int
}

// startLookups prepares the lookups of the first pieces of text[i:], and reads one word of each
// set, so that the processor waits for many reads at a time. If the loop also compared keys, it
// would wait for one read after the other.
func (c *pieceCache) startLookups(lookups []lookup, text []byte, i int, ends []int) {
	read := uint64(0)
	for j, end := range ends {
		l := &lookups[j]
		if end-i > shortBytes {
			*l = lookup{keyHigh: 1} // matches no piece
		} else {
			l.keyLow, l.keyHigh = shortKey(text, i, end)
			l.set = c.setIndex(l.keyLow, l.keyHigh)
			read ^= c.sets[l.set][0].keyLow
		}
		i = end
	}
	c.sink = read
}

func (c *pieceCache) find(l *lookup) *pieceTokens {
	set := &c.sets[l.set]
	way := 0
	if set[1].matches(l.keyLow, l.keyHigh) { // compiles to a conditional move instead of a branch
		way = 1
	}
	if found := &set[way&1]; found.matches(l.keyLow, l.keyHigh) {
		return found
	}
	return nil
}

func (c *pieceCache) add(piece []byte, tokens []uint32) {
	if len(piece) <= shortBytes {
		low, high := shortKey(piece, 0, len(piece))
		set := &c.sets[c.setIndex(low, high)]
		set[1] = set[0]
		set[0] = pieceTokens{keyLow: low, keyHigh: high | uint64(min(len(tokens), inlineTokens+1))<<60}
		copy(set[0].tokens[:], tokens)
	}
	if len(piece) <= maxScanned && (len(piece) > shortBytes || len(tokens) > inlineTokens) {
		if len(c.overflow) == maxOverflow {
			clear(c.overflow)
		}
		c.overflow[string(piece)] = slices.Clone(tokens)
	}
}
