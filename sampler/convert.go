package sampler

import (
	"math"
	"slices"
	"unsafe"
)

// DType is the type of a token in a batch, little-endian.
type DType string

const (
	Uint16 DType = "uint16"
	Uint32 DType = "uint32"
	Int32  DType = "int32"
	Int64  DType = "int64"
	Native DType = "native" // as the token files have it
)

// Size is the bytes of a token.
func (d DType) Size() int {
	switch d {
	case Uint16:
		return 2
	case Int64:
		return 8
	}
	return 4
}

// convert writes the tokens of raw, unsigned integers of width bytes, to dst as d. It returns the index of the first
// token that d cannot hold, or -1. Tokens are never wrapped.
func convert(dst, raw []byte, d DType, width int) (bad int) {
	switch {
	case width == 4 && d == Uint16:
		if bad := tooLarge(raw, math.MaxUint16); bad >= 0 {
			return bad
		}
		each[uint16, uint32](dst, raw)
	case width == 4 && d == Int32:
		if bad := tooLarge(raw, math.MaxInt32); bad >= 0 {
			return bad
		}
		copy(dst, raw)
	case width == d.Size():
		copy(dst, raw)
	case width == 2 && d.Size() == 4:
		each[uint32, uint16](dst, raw)
	case width == 2:
		each[uint64, uint16](dst, raw)
	default:
		each[uint64, uint32](dst, raw)
	}
	return -1
}

// The loops below are those that the compiler makes good code of: no bounds to check, one load and one store a token.

// each converts tokens of type S to type D.
func each[D, S uint16 | uint32 | uint64](dst, src []byte) {
	from := as[S](src)
	to := as[D](dst)[:len(from)]
	for i, v := range from {
		to[i] = D(v)
	}
}

// tooLarge is the index of the first uint32 of raw above most, all of whose bits are ones, or -1.
func tooLarge(raw []byte, most uint32) int {
	tokens := as[uint32](raw)
	var all uint32
	for _, v := range tokens {
		all |= v
	}
	if all <= most {
		return -1
	}
	return slices.IndexFunc(tokens, func(v uint32) bool { return v > most })
}

// as is b as numbers of this machine, which therefore must be little-endian, as files and batches are.
func as[N uint16 | uint32 | uint64](b []byte) []N {
	var n N
	return unsafe.Slice((*N)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(n)))
}
