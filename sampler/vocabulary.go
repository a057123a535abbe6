package sampler

import (
	"slices"

	"batchfs/cache/array"
)

// A vocabulary finds tokens that are not below its size. Tokens of 2 or 4 bytes are lanes of 8 bytes, which it compares at once. A negative
// token is never below.
type vocabulary struct {
	size  uint64 // 0: there is no token to find
	width int    // bytes of a token
	high  bool   // the size is above the highest bit of a token
	top   uint64 // in each lane, the highest bit
	add   uint64 // in each lane, what takes the size to the highest bit; if high, the size without its highest bit
}

// newVocabulary makes a vocabulary of any token if size is 0.
func newVocabulary(size int64, dtype array.DType) (v vocabulary) {
	bits := 8 * dtype.Size()
	if !dtype.IsInteger() || size == 0 || bits < 64 && size>>bits > 0 {
		return v
	}
	v.size, v.width = uint64(size), bits/8
	lanes := map[int]uint64{16: 1<<48 | 1<<32 | 1<<16 | 1, 32: 1<<32 | 1}[bits]
	half := uint64(1) << (bits - 1)
	v.high, v.top = v.size > half, half*lanes
	if v.add = half - v.size; v.high {
		v.add = 2*half - v.size
	}
	v.add *= lanes
	return v
}

// find returns the index of the first token of raw that is not below the size, or -1.
func (v *vocabulary) find(raw []byte) int {
	lanes := v.width == 2 || v.width == 4
	if v.size == 0 || lanes && len(raw) >= 64 && !v.has(as[uint64](raw)) && !v.has(as[uint64](raw[len(raw)-64:])) {
		return -1
	}
	switch v.width {
	case 1:
		return firstFrom[uint8](v.size, raw)
	case 2:
		return firstFrom[uint16](v.size, raw)
	case 4:
		return firstFrom[uint32](v.size, raw)
	}
	return firstFrom[uint64](v.size, raw)
}

func firstFrom[N uinteger](size uint64, raw []byte) int {
	return slices.IndexFunc(as[N](raw), func(token N) bool { return uint64(token) >= size })
}

// has reports whether a lane of words is not below the size; words behind the last eight do not count. Only the sum of a lane that is not
// below can overflow into the next one.
func (v *vocabulary) has(words []uint64) bool {
	var found uint64
	add, rest := v.add, ^v.top
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
