package sampler

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"batchfs/cache/array"
)

// A converter writes the numbers of raw to dst as numbers of another dtype. It returns the index of the first number that this dtype cannot
// hold, or -1. Numbers are never wrapped.
type converter func(dst, raw []byte) (bad int)

// newConverter needs two dtypes of integers, or one dtype twice.
func newConverter(to, from array.DType) converter {
	if to.Size() != from.Size() {
		return converters[to][from]
	}
	var signed vocabulary
	if to != from { // only one of them has numbers with the highest bit
		signed = newVocabulary(1<<(8*to.Size()-1), to)
	}
	return func(dst, raw []byte) (bad int) {
		if bad = signed.find(raw); bad < 0 {
			copy(dst, raw)
		}
		return bad
	}
}

type uinteger interface {
	uint8 | uint16 | uint32 | uint64
}

type integer interface {
	uinteger | int8 | int16 | int32 | int64
}

// converters are of integers of unlike sizes, by the dtype that they convert to and then by the dtype that they convert from.
var converters = map[array.DType]map[array.DType]converter{
	array.Uint8: convertersTo[uint8](), array.Uint16: convertersTo[uint16](),
	array.Uint32: convertersTo[uint32](), array.Uint64: convertersTo[uint64](),
	array.Int8: convertersTo[int8](), array.Int16: convertersTo[int16](),
	array.Int32: convertersTo[int32](), array.Int64: convertersTo[int64](),
}

func convertersTo[D integer]() map[array.DType]converter {
	return map[array.DType]converter{
		array.Uint8: convert[D, uint8], array.Uint16: convert[D, uint16], array.Uint32: convert[D, uint32], array.Uint64: convert[D, uint64],
		array.Int8: convert[D, int8], array.Int16: convert[D, int16], array.Int32: convert[D, int32], array.Int64: convert[D, int64],
	}
}

// convert takes eight numbers at a time: a loop over single numbers is so short that it takes twice as long where its code happens to cross a
// cache line.
func convert[D, S integer](dst, raw []byte) (bad int) {
	from, to, changed := as[S](raw), as[D](dst), uint64(0)
	for len(from) >= 8 && len(to) >= 8 { // both, so that the compiler leaves out the checks of bounds
		a, b, c, d := from[0], from[1], from[2], from[3]
		changed |= put(&to[0], a) | put(&to[1], b) | put(&to[2], c) | put(&to[3], d)
		a, b, c, d = from[4], from[5], from[6], from[7]
		changed |= put(&to[4], a) | put(&to[5], b) | put(&to[6], c) | put(&to[7], d)
		from, to = from[8:], to[8:]
	}
	for i, v := range from {
		changed |= put(&to[i], v)
	}
	if changed == 0 {
		return -1
	}
	return slices.IndexFunc(as[S](raw), func(v S) bool { return put(new(D), v) != 0 })
}

// put returns 0 if the number stays the same.
func put[D, S integer](to *D, v S) (changed uint64) {
	d := D(v)
	*to = d
	switch {
	case unsafe.Sizeof(d) > unsafe.Sizeof(v) && (^D(0) < 0 || ^S(0) > 0): // D has all numbers of S
		return 0
	case (d < 0) != (v < 0):
		return 1
	}
	return uint64(d) ^ uint64(v)
}

// holds reports whether an integer dtype has a number.
func holds(dtype array.DType, n uint64) bool {
	return newConverter(dtype, array.Uint64)(make([]byte, 8), binary.LittleEndian.AppendUint64(nil, n)) < 0
}

// as views b as numbers. It does not swap bytes: the machine must be little-endian, as files and batches are.
func as[N integer](b []byte) []N {
	var n N
	return unsafe.Slice((*N)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(n)))
}
