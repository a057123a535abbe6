package sampler

import (
	"encoding/binary"
	"math"
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
	le := binary.LittleEndian
	switch {
	case width == 4 && d == Uint16:
		for i := 0; len(raw) >= 4 && len(dst) >= 2; i++ {
			v := le.Uint32(raw)
			if v > math.MaxUint16 {
				return i
			}
			le.PutUint16(dst, uint16(v))
			raw, dst = raw[4:], dst[2:]
		}
	case width == 4 && d == Int32:
		for i := 0; i+4 <= len(raw); i += 4 {
			if le.Uint32(raw[i:]) > math.MaxInt32 {
				return i / 4
			}
		}
		copy(dst, raw)
	case width == d.Size():
		copy(dst, raw)
	case width == 2 && d.Size() == 4:
		for len(raw) >= 2 && len(dst) >= 4 {
			le.PutUint32(dst, uint32(le.Uint16(raw)))
			raw, dst = raw[2:], dst[4:]
		}
	case width == 2:
		for len(raw) >= 2 && len(dst) >= 8 {
			le.PutUint64(dst, uint64(le.Uint16(raw)))
			raw, dst = raw[2:], dst[8:]
		}
	default:
		for len(raw) >= 4 && len(dst) >= 8 {
			le.PutUint64(dst, uint64(le.Uint32(raw)))
			raw, dst = raw[4:], dst[8:]
		}
	}
	return -1
}
