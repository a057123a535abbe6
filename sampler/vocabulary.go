package sampler

import (
	"slices"

	"batchfs/cache/array"
)

// A vocabulary finds tokens that are not below its size. It looks at 8 bytes at a time, of which each token is a lane, where tokens
// have 2 or 4 bytes. A negative one is never below.
type vocabulary struct {
	size  uint64 // 0: there is no token to find
	width int    // bytes of a token, where it is not 2 or 4
	wide  bool   // tokens are uint32, not uint16
	high  bool   // the size is above the highest bit of a token
	top   uint64 // in each lane, the highest bit
	add   uint64 // in each lane, what takes the size to the highest bit; if high, the size without its highest bit
}

// newVocabulary returns a vocabulary for tokens of a dtype. A size of 0 means that any token may be there.
func newVocabulary(size int64, dtype array.DType) (v vocabulary) {
	bits := 8 * dtype.Size()
	if !dtype.IsInteger() || size == 0 || bits < 64 && size>>bits > 0 {
		return v
	}
	if bits == 8 || bits == 64 {
		return vocabulary{size: uint64(size), width: bits / 8}
	}
	half, lanes := uint64(1)<<(bits-1), uint64(1<<48|1<<32|1<<16|1)
	if v.wide = bits == 32; v.wide {
		lanes = 1<<32 | 1
	}
	v.size, v.high, v.top = uint64(size), uint64(size) > half, half*lanes
	if v.add = half - v.size; v.high {
		v.add = 2*half - v.size
	}
	v.add *= lanes
	return v
}

// find returns the index of the first token of raw that is not below the size, or -1.
func (v *vocabulary) find(raw []byte) int {
	switch {
	case v.size == 0:
		return -1
	case v.width == 1:
		return slices.IndexFunc(raw, func(token byte) bool { return uint64(token) >= v.size })
	case v.width == 8:
		return slices.IndexFunc(as[uint64](raw), func(token uint64) bool { return token >= v.size })
	}
	if len(raw) >= 8 && !v.has(as[uint64](raw)) && !v.has(as[uint64](raw[len(raw)-8:])) {
		return -1
	}
	if v.wide {
		return slices.IndexFunc(as[uint32](raw), func(token uint32) bool { return uint64(token) >= v.size })
	}
	return slices.IndexFunc(as[uint16](raw), func(token uint16) bool { return uint64(token) >= v.size })
}

// has reports whether a lane is not below the size. Only the sum of a lane that is not can overflow into the next one.
func (v *vocabulary) has(words []uint64) bool {
	var found uint64
	add, rest := v.add, ^v.top
	if v.high {
		reaches := func(a uint64) uint64 { return a & (a&rest + add) }
		for ; len(words) >= 8; words = words[8:] {
			a, b, c, d, e, f, g, h := words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]
			found |= reaches(a) | reaches(b) | reaches(c) | reaches(d) | reaches(e) | reaches(f) | reaches(g) | reaches(h)
		}
		for _, a := range words {
			found |= reaches(a)
		}
	} else {
		reaches := func(a uint64) uint64 { return a | (a + add) }
		for ; len(words) >= 8; words = words[8:] {
			a, b, c, d, e, f, g, h := words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]
			found |= reaches(a) | reaches(b) | reaches(c) | reaches(d) | reaches(e) | reaches(f) | reaches(g) | reaches(h)
		}
		for _, a := range words {
			found |= reaches(a)
		}
	}
	return found&v.top != 0
}
