package sampler

import (
	"math"
	"slices"
	"unsafe"

	"batchfs/cache/array"
)

// convertible reports whether convert reads tokens of a dtype.
func convertible(from array.DType) bool { return from == array.Uint16 || from == array.Uint32 }

// convert writes the tokens of raw, which are of dtype from, to dst as dtype to. It returns the index of the first token that
// dtype to cannot hold, or -1. Tokens are never wrapped.
func convert(dst, raw []byte, to, from array.DType) (bad int) {
	switch {
	case from == array.Uint32 && to == array.Uint16:
		if bad := tooLarge(raw, math.MaxUint16); bad >= 0 {
			return bad
		}
		each[uint16, uint32](dst, raw)
	case from == array.Uint32 && to == array.Int32:
		if bad := tooLarge(raw, math.MaxInt32); bad >= 0 {
			return bad
		}
		copy(dst, raw)
	case from == to:
		copy(dst, raw)
	case from == array.Uint16 && to == array.Int64:
		each[uint64, uint16](dst, raw)
	case from == array.Uint16:
		each[uint32, uint16](dst, raw)
	default:
		each[uint64, uint32](dst, raw)
	}
	return -1
}

// The loops below take eight tokens at a time: one over single tokens is so short that it takes twice as long where its code
// happens to cross a cache line.

// each converts tokens of type S to type D.
func each[D, S uint16 | uint32 | uint64](dst, src []byte) {
	from, to := as[S](src), as[D](dst)
	for len(from) >= 8 && len(to) >= 8 { // both, so that the compiler leaves out the checks of bounds
		to[0], to[1], to[2], to[3] = D(from[0]), D(from[1]), D(from[2]), D(from[3])
		to[4], to[5], to[6], to[7] = D(from[4]), D(from[5]), D(from[6]), D(from[7])
		from, to = from[8:], to[8:]
	}
	for i, v := range from {
		to[i] = D(v)
	}
}

// tooLarge is the index of the first uint32 of raw above most, or -1. most is a power of two less one.
func tooLarge(raw []byte, most uint32) int {
	tokens := as[uint32](raw)
	var all uint32
	rest := tokens
	for ; len(rest) >= 8; rest = rest[8:] {
		all |= rest[0] | rest[1] | rest[2] | rest[3] | rest[4] | rest[5] | rest[6] | rest[7]
	}
	for _, v := range rest {
		all |= v
	}
	if all <= most {
		return -1
	}
	return slices.IndexFunc(tokens, func(v uint32) bool { return v > most })
}

// as views b as numbers. It does not swap bytes: the machine must be little-endian, as files and batches are.
func as[N uint16 | uint32 | uint64](b []byte) []N {
	var n N
	return unsafe.Slice((*N)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(n)))
}
