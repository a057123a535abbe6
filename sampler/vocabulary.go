package sampler

import (
	"slices"

	"batchfs/cache/array"
)

// A vocabulary finds tokens that are not below its size. It compares tokens of 2 or 4 bytes as
// lanes of 64-bit words. A negative token is never below.
type vocabulary struct {
	tokenSearcher
	size        uint64 // 0 if every token is valid
	exceedsHalf bool   // whether size exceeds the highest bit of a token
	highBits    uint64 // highest bit of each lane; 0 if tokens have 1 or 8 bytes
	addend      uint64 // see hasInvalid
}

// newVocabulary returns the vocabulary of tokens below size. If size is 0 or larger than any token,
// every token is valid.
func newVocabulary(size int64, dtype array.DType) (v vocabulary) {
	bits := 8 * dtype.Size()
	v.tokenSearcher = tokensBySize[dtype.Size()]
	if dtype.IsInteger() && uint64(size)>>bits == 0 {
		v.size = uint64(size)
	}
	if bits == 16 || bits == 32 {
		lanes, half := ^uint64(0)/(1<<bits-1), uint64(1)<<(bits-1) // lanes has a 1 in each lane
		v.exceedsHalf, v.highBits = v.size > half, half*lanes
		v.addend = (half - v.size) % half * lanes
	}
	return v
}

// find returns the index of the first token that is not below the size, or -1.
func (v *vocabulary) find(raw []byte) int {
	if v.size == 0 || len(raw) == 0 || v.highBits != 0 && len(raw) >= 64 && !v.hasInvalid(viewAs[uint64](raw)) &&
		!v.hasInvalid(viewAs[uint64](raw[len(raw)-64:])) {
		return -1
	}
	return v.notBelow(v.size, raw)
}

// hasInvalid reports whether a lane is not below the size. It ignores words after the last full
// group of eight. A lane is not below the size if its highest bit is set or adding addend sets it.
// If exceedsHalf, both must hold, with the bit cleared before adding. Only such lanes can overflow
// into the next.
func (v *vocabulary) hasInvalid(words []uint64) bool {
	found, add, rest := uint64(0), v.addend, ^v.highBits
	if v.exceedsHalf {
		reaches := func(a uint64) uint64 { return a & (a&rest + add) }
		for ; len(words) >= 8; words = words[8:] {
			a, b, c, d, e, f, g, h := words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]
			found |= reaches(a) | reaches(b) | reaches(c) | reaches(d) | reaches(e) | reaches(f) | reaches(g) | reaches(h)
		}
	} else {
		reaches := func(a uint64) uint64 { return a | (a + add) }
		for ; len(words) >= 8; words = words[8:] {
			a, b, c, d, e, f, g, h := words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]
			found |= reaches(a) | reaches(b) | reaches(c) | reaches(d) | reaches(e) | reaches(f) | reaches(g) | reaches(h)
		}
	}
	return found&v.highBits != 0
}

// A tokenSearcher searches bytes for tokens of one size, as unsigned numbers.
type tokenSearcher interface {
	// notBelow returns the index of the first token that is not below size, or -1.
	notBelow(size uint64, raw []byte) int

	// appendEnds appends, for each token equal to eot, 1 + its index in the row. raw begins at
	// index first of the row.
	appendEnds(ends []int, raw []byte, eot uint64, first int) []int
}

var tokensBySize = map[int]tokenSearcher{
	1: tokensOfSize[uint8]{}, 2: tokensOfSize[uint16]{}, 4: tokensOfSize[uint32]{}, 8: tokensOfSize[uint64]{},
}

type tokensOfSize[N unsigned] struct{}

func (tokensOfSize[N]) notBelow(size uint64, raw []byte) int {
	return slices.IndexFunc(viewAs[N](raw), func(token N) bool { return uint64(token) >= size })
}

func (tokensOfSize[N]) appendEnds(ends []int, raw []byte, eot uint64, first int) []int {
	for i, token := range viewAs[N](raw) {
		if uint64(token) == eot {
			ends = append(ends, first+i+1)
		}
	}
	return ends
}
