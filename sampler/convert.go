package sampler

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"batchfs/cache/array"
)

// A converter writes the numbers of raw to dst as another dtype. It returns the index of the first
// number that this dtype cannot hold, or -1.
type converter func(dst, raw []byte) (bad int)

// newConverter returns the converter between two integer dtypes, or from any dtype to itself.
func newConverter(to, from array.DType) converter {
	if to.Size() != from.Size() {
		return converters[to][from]
	}
	var signed vocabulary
	if to != from { // same size: one of them is signed, so the highest bit must be 0
		signed = newVocabulary(1<<(8*to.Size()-1), to)
	}
	return func(dst, raw []byte) (bad int) {
		if bad = signed.find(raw); bad < 0 {
			copy(dst, raw)
		}
		return bad
	}
}

type unsigned interface {
	uint8 | uint16 | uint32 | uint64
}

type integer interface {
	unsigned | int8 | int16 | int32 | int64
}

// converters[to][from] converts between integer dtypes of different sizes.
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

// convert is a converter. It takes eight numbers at a time, because a loop over single ones is so
// short that it takes twice as long if it happens to cross a cache line.
func convert[D, S integer](dst, raw []byte) (bad int) {
	from, to, changed := viewAs[S](raw), viewAs[D](dst), uint64(0)
	for len(from) >= 8 && len(to) >= 8 { // both conditions, to avoid bounds checks
		a, b, c, d := from[0], from[1], from[2], from[3]
		changed |= convertNumber(&to[0], a) | convertNumber(&to[1], b) | convertNumber(&to[2], c) | convertNumber(&to[3], d)
		a, b, c, d = from[4], from[5], from[6], from[7]
		changed |= convertNumber(&to[4], a) | convertNumber(&to[5], b) | convertNumber(&to[6], c) | convertNumber(&to[7], d)
		from, to = from[8:], to[8:]
	}
	for i, v := range from {
		changed |= convertNumber(&to[i], v)
	}
	if changed == 0 {
		return -1
	}
	return slices.IndexFunc(viewAs[S](raw), func(v S) bool { return convertNumber(new(D), v) != 0 })
}

// convertNumber stores v in to, and returns 0 if D can hold v.
func convertNumber[D, S integer](to *D, v S) (changed uint64) {
	d := D(v)
	*to = d
	switch {
	case unsafe.Sizeof(d) > unsafe.Sizeof(v) && (^D(0) < 0 || ^S(0) > 0): // D can hold every S
		return 0
	case (d < 0) != (v < 0):
		return 1
	}
	return uint64(d) ^ uint64(v)
}

// canHold reports whether an integer dtype can hold n.
func canHold(dtype array.DType, n int64) bool {
	return newConverter(dtype, array.Int64)(make([]byte, 8), binary.LittleEndian.AppendUint64(nil, uint64(n))) < 0
}

// viewAs returns b as numbers, without copying. The machine must be little-endian, like files and
// batches.
func viewAs[N integer](b []byte) []N {
	var n N
	return unsafe.Slice((*N)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(n)))
}
