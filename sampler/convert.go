package sampler

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"batchfs/cache/array"
)

// convert writes the numbers of raw, which are of dtype from, to dst as dtype to; both are integers, or one dtype. It returns the index of the first number that
// dtype to cannot hold, or -1. Numbers are never wrapped.
func convert(dst, raw []byte, to, from array.DType) (bad int) {
	switch {
	case from == to:
		copy(dst, raw)
	case from == array.Uint16 && (to == array.Uint32 || to == array.Int32):
		each[uint32, uint16](dst, raw)
	case from == array.Uint16 && (to == array.Uint64 || to == array.Int64):
		each[uint64, uint16](dst, raw)
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
	case from == array.Uint32 && (to == array.Uint64 || to == array.Int64):
		each[uint64, uint32](dst, raw)
	default:
		return converters[to][from](dst, raw)
	}
	return -1
}

// The loops below take eight numbers at a time: one over single numbers is so short that it takes twice as long where its code
// happens to cross a cache line.

// each converts numbers of type S to type D.
func each[D, S uinteger](dst, src []byte) {
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

type uinteger interface {
	uint8 | uint16 | uint32 | uint64
}

type integer interface {
	uinteger | int8 | int16 | int32 | int64
}

// converters are of any integer dtype, by the dtype that they convert to and then by the dtype that they convert from.
var converters = map[array.DType]map[array.DType]func(dst, raw []byte) (bad int){
	array.Uint8: convertersTo[uint8](), array.Uint16: convertersTo[uint16](),
	array.Uint32: convertersTo[uint32](), array.Uint64: convertersTo[uint64](),
	array.Int8: convertersTo[int8](), array.Int16: convertersTo[int16](),
	array.Int32: convertersTo[int32](), array.Int64: convertersTo[int64](),
}

func convertersTo[D integer]() map[array.DType]func(dst, raw []byte) (bad int) {
	return map[array.DType]func(dst, raw []byte) (bad int){
		array.Uint8: checked[D, uint8], array.Uint16: checked[D, uint16], array.Uint32: checked[D, uint32], array.Uint64: checked[D, uint64],
		array.Int8: checked[D, int8], array.Int16: checked[D, int16], array.Int32: checked[D, int32], array.Int64: checked[D, int64],
	}
}

func checked[D, S integer](dst, raw []byte) (bad int) {
	out := as[D](dst)
	for i, v := range as[S](raw) {
		d := D(v)
		if S(d) != v || (d < 0) != (v < 0) {
			return i
		}
		out[i] = d
	}
	return -1
}

// holds reports whether an integer dtype has a number.
func holds(dtype array.DType, n uint64) bool {
	return convert(make([]byte, 8), binary.LittleEndian.AppendUint64(nil, n), dtype, array.Uint64) < 0
}

// as views b as numbers. It does not swap bytes: the machine must be little-endian, as files and batches are.
func as[N integer](b []byte) []N {
	var n N
	return unsafe.Slice((*N)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(n)))
}
