package bpe

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	shortBytes   = 15      // longest piece that fits into an entry, in bytes
	inlineTokens = 4       // tokens that fit into an entry
	setBits      = 19      // log2 of the number of sets
	overflowBits = 16      // log2 of the number of pieces in the overflow
	maxRefused   = 1 << 21 // pieces for which a table has no room before an empty one replaces it
)

// A Cache holds the tokens of pieces encoded before by the encoders of one tokenizer. It is safe
// for concurrent use, and takes up to 32 MiB, and about 10 MiB more for long pieces.
type Cache struct {
	table atomic.Pointer[pieceTable]
	// overflow holds the pieces that do not fit into the table, because they are too long, have too
	// many tokens, or belong to a full set. It is indexed by a hash. A piece replaces an earlier
	// one with the same index.
	overflow [1 << overflowBits]atomic.Pointer[overflowPiece]
	seed     maphash.Seed
}

// A pieceTable is a hash table of short pieces. Pieces are only added: once an entry has a key, it
// never changes, so readers need no lock. If a set is full, further pieces do not enter it.
type pieceTable struct {
	// sets is indexed by setIndex. A set fills one line of the processor's cache, 64 bytes.
	sets    [1 << setBits][2]pieceTokens
	refused atomic.Int64 // number of times that a piece's set was full
}

type overflowPiece struct {
	text   string
	tokens []uint32
}

// A pieceTokens is an entry of a table: a short piece and its tokens. Both words of the key are
// read and written atomically. keyHigh is written last, so if it matches, the entry is complete.
type pieceTokens struct {
	// The key is the piece itself, so different pieces have different keys: its bytes, with zeros
	// after them, then their number in bits 56 to 59 of keyHigh. The top four bits of keyHigh are
	// not part of the key, but hold the number of tokens. If that exceeds inlineTokens, the tokens
	// are in the overflow.
	keyLow, keyHigh uint64
	tokens          [inlineTokens]uint32
}

// Values of keyHigh that no short piece has.
const (
	longPiece  = 1 // in the lookup of a piece that is too long for an entry
	incomplete = 2 // in an entry that is being written
)

// matches reports whether an entry has this key. The shift drops the number of tokens.
func (e *pieceTokens) matches(low, high uint64) bool {
	return (atomic.LoadUint64(&e.keyLow)^low)|(atomic.LoadUint64(&e.keyHigh)^high)<<4 == 0
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	c := &Cache{seed: maphash.MakeSeed()}
	c.table.Store(newPieceTable())
	return c
}

func newPieceTable() *pieceTable {
	t := new(pieceTable)
	// With pages of 4 KiB, most lookups would miss the TLB. If huge pages are unavailable, lookups
	// only take longer, so the error is ignored.
	syscall.Syscall(syscall.SYS_MADVISE, uintptr(unsafe.Pointer(t)), unsafe.Sizeof(*t), syscall.MADV_HUGEPAGE)
	return t
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

func setIndex(low, high uint64) int {
	over, under := bits.Mul64(low^0x9e3779b97f4a7c15, high^0xd1b54a32d192ed03)
	return int((over ^ under) >> (64 - setBits))
}

// A lookup is the key of a piece to find, and the index of its set.
type lookup struct {
	keyLow, keyHigh uint64
	set             int
}

// startLookups computes the lookups of the pieces that begin at text[i] and end at ends, and reads
// a word of each piece's set to bring the set into the processor's cache. The processor overlaps
// these reads because nothing depends on their results. If the loop compared keys too, each read
// would have to end before the next one could begin.
//
// The caller must store the result, a combination of all words, or else the compiler would remove
// the reads. They need not be atomic, because the value of the result does not matter.
//
//go:norace
func (t *pieceTable) startLookups(lookups []lookup, text []byte, i int, ends []int) (read uint64) {
	for j, end := range ends {
		l := &lookups[j]
		if end-i > shortBytes {
			*l = lookup{keyHigh: longPiece}
		} else {
			l.keyLow, l.keyHigh = shortKey(text, i, end)
			l.set = setIndex(l.keyLow, l.keyHigh)
			read ^= t.sets[l.set][0].keyLow
		}
		i = end
	}
	return read
}

// find returns the entry of a piece, or any entry of its set if the table does not have the piece.
// It is written so that the compiler uses a conditional move, because the processor could not
// predict a branch.
func (t *pieceTable) find(l *lookup) *pieceTokens {
	set, way := &t.sets[l.set], 0
	if set[1].matches(l.keyLow, l.keyHigh) {
		way = 1
	}
	return &set[way&1]
}

// add adds a short piece, and reports whether its set had room.
func (t *pieceTable) add(low, high uint64, tokens []uint32) bool {
	set := &t.sets[setIndex(low, high)]
	for i := range set {
		e := &set[i]
		if e.matches(low, high) {
			return true // another encoder has added it in the meantime
		}
		if atomic.CompareAndSwapUint64(&e.keyHigh, 0, incomplete) {
			copy(e.tokens[:], tokens)
			atomic.StoreUint64(&e.keyLow, low)
			atomic.StoreUint64(&e.keyHigh, high|uint64(min(len(tokens), inlineTokens+1))<<60)
			return true
		}
	}
	return false
}

// add caches the tokens of a piece, unless it is longer than maxScanned.
func (c *Cache) add(piece []byte, tokens []uint32) {
	if len(piece) <= shortBytes {
		low, high := shortKey(piece, 0, len(piece))
		t := c.table.Load()
		if t.add(low, high, tokens) {
			if len(tokens) <= inlineTokens {
				return
			}
		} else if t.refused.Add(1) == maxRefused {
			c.table.Store(newPieceTable()) // texts now have other pieces than the table
		}
	}
	if len(piece) <= maxScanned {
		c.overflowFor(piece).Store(&overflowPiece{string(piece), slices.Clone(tokens)})
	}
}

func (c *Cache) overflowFor(piece []byte) *atomic.Pointer[overflowPiece] {
	return &c.overflow[maphash.Bytes(c.seed, piece)>>(64-overflowBits)]
}
