package bpe

import (
	"encoding/binary"
	"math/bits"
	"reflect"
	"slices"
	"syscall"
)

const (
	short    = 15 // bytes of a piece that an entry holds; the sixteenth is their number
	few      = 4  // tokens that an entry holds
	setBits  = 19
	mostRest = 1 << 16 // pieces
)

// known are the tokens of pieces that were met before.
type known struct {
	sets [][2]pieceTokens    // by hash, each a line of the processor's cache
	read uint64              // unused: without it, the compiler would leave out what begin reads
	rest map[string][]uint32 // of pieces that are longer, or have more tokens, than an entry holds
}

// A pieceTokens is a short piece and its tokens. A piece is compared as two numbers, which hold its bytes and their number, so an entry is
// never another piece's.
type pieceTokens struct {
	low, high uint64 // the highest four bits are the number of tokens; if more than few, those are in rest
	tokens    [few]uint32
}

func (e *pieceTokens) is(low, high uint64) bool { return (e.low^low)|(e.high^high)<<4 == 0 }

func newKnown() known {
	k := known{sets: make([][2]pieceTokens, 1<<setBits), rest: map[string][]uint32{}}
	// In pages of 4 KiB, most look-ups would wait for a page's address as well. It is only advice.
	sets := reflect.ValueOf(k.sets)
	syscall.Syscall(syscall.SYS_MADVISE, sets.Pointer(), uintptr(sets.Len())*sets.Type().Elem().Size(), syscall.MADV_HUGEPAGE)
	return k
}

// shortMasks mask the bytes of a piece of 0, 1, … bytes.
var shortMasks = func() (masks [short + 1]struct{ low, high uint64 }) {
	for n := range masks {
		masks[n].low, masks[n].high = 1<<(8*min(n, 8))-1, 1<<(8*max(n-8, 0))-1
	}
	return masks
}()

// shortPiece returns a piece of up to 15 bytes as two numbers.
func shortPiece(text []byte, i, end int) (low, high uint64) {
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

// set returns the index of the set where a short piece is, if it is known.
func (k *known) set(low, high uint64) int {
	over, under := bits.Mul64(low^0x9e3779b97f4a7c15, high^0xd1b54a32d192ed03)
	return int((over ^ under) >> (64 - setBits))
}

// A lookup is a piece to find, and the set in which to look.
type lookup struct {
	low, high uint64
	set       int
}

// begin makes a lookup of each piece from text[i] on, and reads a word of its set. These reads do not depend on each other, so the
// processor waits for many at once. A loop that also compares would wait for one after the other.
func (k *known) begin(lookups []lookup, text []byte, i int, ends []int) {
	read := uint64(0)
	for j, end := range ends {
		l := &lookups[j]
		if end-i > short {
			*l = lookup{high: 1} // which is no piece's
		} else {
			l.low, l.high = shortPiece(text, i, end)
			l.set = k.set(l.low, l.high)
			read ^= k.sets[l.set][0].low
		}
		i = end
	}
	k.read = read
}

// find returns the entry of a piece, or nil.
func (k *known) find(l *lookup) *pieceTokens {
	set := &k.sets[l.set]
	way := 0
	if set[1].is(l.low, l.high) { // a number that depends on it, so that it is no branch
		way = 1
	}
	if found := &set[way&1]; found.is(l.low, l.high) {
		return found
	}
	return nil
}

// add remembers the tokens of a piece.
func (k *known) add(piece []byte, tokens []uint32) {
	if len(piece) <= short {
		low, high := shortPiece(piece, 0, len(piece))
		set := &k.sets[k.set(low, high)]
		set[1] = set[0]
		set[0] = pieceTokens{low: low, high: high | uint64(min(len(tokens), few+1))<<60}
		copy(set[0].tokens[:], tokens)
	}
	if len(piece) <= longest && (len(piece) > short || len(tokens) > few) {
		if len(k.rest) == mostRest {
			clear(k.rest)
		}
		k.rest[string(piece)] = slices.Clone(tokens)
	}
}
