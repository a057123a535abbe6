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
	shortBytes   = 15      // bytes of a piece that fit into an entry
	inlineTokens = 4       // tokens that fit into an entry
	setBits      = 19      // log2 of the number of sets
	overflowBits = 16      // log2 of the number of pieces in the overflow
	maxRefused   = 1 << 21 // pieces refused before a new table replaces a full one
)

// A Cache holds the tokens of pieces encoded before by the encoders of one tokenizer. It is safe
// for concurrent use, and takes up to 32 MiB, and about 10 MiB more for long pieces.
type Cache struct {
	table atomic.Pointer[pieceTable]
	// The overflow has pieces that are too long, or have too many tokens, for an entry, and pieces
	// whose sets are full. It is indexed by a hash, and keeps the latest of the pieces with a hash.
	overflow [1 << overflowBits]atomic.Pointer[overflowPiece]
	seed     maphash.Seed
}

// A pieceTable has the pieces that came first. Once an entry has a key it never changes, so readers
// need no lock.
type pieceTable struct {
	// sets is indexed by a hash. A set fills one line of the processor's cache.
	sets    [1 << setBits][2]pieceTokens
	refused atomic.Int64 // pieces whose sets were full
}

type overflowPiece struct {
	text   string
	tokens []uint32
}

// A pieceTokens is an entry of a table. Its key consists of the bytes of a short piece and their
// count, so entries of different pieces never match. The key is read and written atomically, and
// keyHigh is written last.
type pieceTokens struct {
	// The top four bits of keyHigh hold the number of tokens. If that exceeds inlineTokens, the
	// tokens are in the overflow.
	keyLow, keyHigh uint64
	tokens          [inlineTokens]uint32
}

// Values of keyHigh that match no piece.
const (
	longPiece  = 1 // in lookups
	incomplete = 2 // in an entry that is being written
)

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
	// With pages of 4 KiB, most lookups would miss the TLB. An error does not matter.
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

// startLookups prepares the lookups of the first pieces of text[i:], and reads one word of each
// set, so that the processor waits for many reads at a time. If the loop also compared keys, it
// would wait for one read after the other. The reads are no data races because nothing depends on
// what they return; the caller keeps it so that the compiler does not remove them.
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

// find returns the entry of a piece, or one that does not match. It compiles to a conditional move
// instead of a branch.
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
			return true // another encoder was faster
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

func (c *Cache) add(piece []byte, tokens []uint32) {
	if len(piece) <= shortBytes {
		low, high := shortKey(piece, 0, len(piece))
		t := c.table.Load()
		if t.add(low, high, tokens) {
			if len(tokens) <= inlineTokens {
				return
			}
		} else if t.refused.Add(1) == maxRefused {
			c.table.Store(newPieceTable()) // the text has changed
		}
	}
	if len(piece) <= maxScanned {
		c.overflowFor(piece).Store(&overflowPiece{string(piece), slices.Clone(tokens)})
	}
}

func (c *Cache) overflowFor(piece []byte) *atomic.Pointer[overflowPiece] {
	return &c.overflow[maphash.Bytes(c.seed, piece)>>(64-overflowBits)]
}
