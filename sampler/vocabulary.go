package sampler

import (
	"slices"

	"batchfs/cache/array"
)

// A vocabulary finds tokens that are not below its size. Tokens of 2 or 4 bytes are lanes of 8 bytes, which it compares at once. A negative
// token is never below.
type vocabulary struct {
	tokens
	size uint64 // 0: there is no token to find
	high bool   // the size is above the highest bit of a token
	top  uint64 // in each lane, the highest bit; 0 for tokens that are no lanes
	add  uint64 // in each lane, what takes the size to the highest bit; if high, the size without that bit
}

// newVocabulary makes a vocabulary of any token if size is 0.
func newVocabulary(size int64, dtype array.DType) (v vocabulary) {
	bits := 8 * dtype.Size()
	v.tokens = tokensOf[dtype.Size()]
	if dtype.IsInteger() && uint64(size)>>bits == 0 {
		v.size = uint64(size)
	}
	if bits == 16 || bits == 32 {
		lanes, half := ^uint64(0)/(1<<bits-1), uint64(1)<<(bits-1) // lanes: 1 in each
		v.high, v.top = v.size > half, half*lanes
		v.add = (half - v.size) % half * lanes
	}
	return v
}

// find returns the index of the first token of raw that is not below the size, or -1.
func (v *vocabulary) find(raw []byte) int {
	if v.size == 0 || len(raw) == 0 || v.top != 0 && len(raw) >= 64 && !v.has(as[uint64](raw)) && !v.has(as[uint64](raw[len(raw)-64:])) {
		return -1
	}
	return v.notBelow(v.size, raw)
}

// has reports whether a lane of words is not below the size; words behind the last eight do not count. Only the sum of a lane that is not
// below can overflow into the next one.
func (v *vocabulary) has(words []uint64) bool {
	found, add, rest := uint64(0), v.add, ^v.top
	if v.high {
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
	return found&v.top != 0
}

// tokens look at tokens of one size as numbers without a sign.
type tokens interface {
	// notBelow is the index of the first token that is not below size, or -1.
	notBelow(size uint64, raw []byte) int

	// appendEnds appends the indexes in the row behind each token that is eot. raw begins with token first of the row.
	appendEnds(ends []int, raw []byte, eot uint64, first int) []int
}

// tokensOf are tokens by their size in bytes.
var tokensOf = map[int]tokens{1: sized[uint8]{}, 2: sized[uint16]{}, 4: sized[uint32]{}, 8: sized[uint64]{}}

type sized[N uinteger] struct{}

func (sized[N]) notBelow(size uint64, raw []byte) int {
	return slices.IndexFunc(as[N](raw), func(token N) bool { return uint64(token) >= size })
}

func (sized[N]) appendEnds(ends []int, raw []byte, eot uint64, first int) []int {
	for i, token := range as[N](raw) {
		if uint64(token) == eot {
			ends = append(ends, first+i+1)
		}
	}
	return ends
}
