// Package array describes arrays of numbers, but holds no elements. A [DType] is the type of a
// number, a [Descriptor] names an array and has its shape and offset, and a [Batch] is a list of
// arrays that lie one after the other in memory.
//
// All numbers are little-endian, and all arrays are in C order (the last axis varies fastest).
package array

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A DType is the type of a number, such as "uint16": its NumPy name, or "bfloat16", which NumPy
// lacks. Methods other than Known and IsSigned panic if it is not one of DTypes.
type DType string

const (
	Bool     DType = "bool"
	Uint8    DType = "uint8"
	Int8     DType = "int8"
	Uint16   DType = "uint16"
	Int16    DType = "int16"
	Uint32   DType = "uint32"
	Int32    DType = "int32"
	Uint64   DType = "uint64"
	Int64    DType = "int64"
	Float16  DType = "float16"
	BFloat16 DType = "bfloat16"
	Float32  DType = "float32"
	Float64  DType = "float64"
)

type dtypeInfo struct {
	dtype       DType
	size        int    // bytes
	numPy       string // descr in a .npy header
	safetensors string // dtype in a safetensors header
	integer     bool
}

var dtypes = []dtypeInfo{
	{Bool, 1, "|b1", "BOOL", false},
	{Uint8, 1, "|u1", "U8", true},
	{Int8, 1, "|i1", "I8", true},
	{Uint16, 2, "<u2", "U16", true},
	{Int16, 2, "<i2", "I16", true},
	{Uint32, 4, "<u4", "U32", true},
	{Int32, 4, "<i4", "I32", true},
	{Uint64, 8, "<u8", "U64", true},
	{Int64, 8, "<i8", "I64", true},
	{Float16, 2, "<f2", "F16", false},
	{Float32, 4, "<f4", "F32", false},
	{Float64, 8, "<f8", "F64", false},
	{BFloat16, 2, "<u2", "BF16", false}, // NumPy has no bfloat16; uint16 has the same bits
}

// DTypes returns all dtypes.
func DTypes() []DType {
	list := make([]DType, len(dtypes))
	for i, info := range dtypes {
		list[i] = info.dtype
	}
	return list
}

func find(matches func(dtypeInfo) bool) DType {
	if i := slices.IndexFunc(dtypes, matches); i >= 0 {
		return dtypes[i].dtype
	}
	return ""
}

// FromNumPy returns the dtype for the descr of a .npy header, or "". It ignores the byte order of
// single bytes.
func FromNumPy(descr string) DType {
	return find(func(i dtypeInfo) bool {
		return i.numPy == descr || i.size == 1 && len(descr) == 3 && i.numPy[1:] == descr[1:]
	})
}

// FromSafetensors returns the dtype for a name in a safetensors header, or "".
func FromSafetensors(name string) DType {
	return find(func(i dtypeInfo) bool { return i.safetensors == name })
}

// info panics if d is unknown: a guessed size would corrupt data silently.
func (d DType) info() *dtypeInfo {
	for i := range dtypes {
		if dtypes[i].dtype == d {
			return &dtypes[i]
		}
	}
	panic(fmt.Sprintf("array: unknown dtype %q", string(d)))
}

// Known reports whether d is one of DTypes.
func (d DType) Known() bool { return slices.Contains(DTypes(), d) }

// Size returns the size of a number in bytes.
func (d DType) Size() int { return d.info().size }

// IsInteger reports whether d is an integer dtype. Bool is not.
func (d DType) IsInteger() bool { return d.info().integer }

// Values returns the number of non-negative values of an integer dtype, at most math.MaxInt64.
func (d DType) Values() int64 {
	bits := 8 * d.Size()
	if d.IsSigned() {
		bits--
	}
	return int64(min(uint64(1)<<min(bits, 63), math.MaxInt64))
}

// IsSigned reports whether d is a signed integer.
func (d DType) IsSigned() bool { return strings.HasPrefix(string(d), "int") }

// Text returns an integer in decimal. bits are its bits, with zeros above them.
func (d DType) Text(bits uint64) string {
	if shift := 64 - 8*d.Size(); d.IsSigned() {
		return strconv.FormatInt(int64(bits<<shift)>>shift, 10)
	}
	return strconv.FormatUint(bits, 10)
}

// Bits returns the bits of the first number in raw, with zeros above them.
func (d DType) Bits(raw []byte) uint64 {
	var b [8]byte
	copy(b[:], raw[:d.Size()])
	return binary.LittleEndian.Uint64(b[:])
}

// NumPy returns the descr for a .npy header: "<u2" for uint16, and for bfloat16, which NumPy lacks.
func (d DType) NumPy() string { return d.info().numPy }

// Safetensors returns the name for a safetensors header, such as "U16" for uint16.
func (d DType) Safetensors() string { return d.info().safetensors }

// ShapeText returns a shape in NumPy's notation, without the parentheses: "2, 12, 1024".
func ShapeText(shape []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ", "), "[]")
}

// A Descriptor describes one array of a batch.
type Descriptor struct {
	Name   string
	DType  DType
	Shape  []int // outermost axis first
	Offset int64 // position in the batch, in bytes
}

// Bytes returns the size of the array in bytes.
func (a Descriptor) Bytes() int64 {
	n := int64(a.DType.Size())
	for _, d := range a.Shape {
		n *= int64(d)
	}
	return n
}

// MaxArrays is the maximum number of arrays in a Batch.
const MaxArrays = 16

// A Batch describes arrays that lie one after the other in memory. The first Main of them, at least
// one, have the same dtype and shape, and together form the larger array that raw and .npy files
// expose: see Stack. A Batch that NewBatch has returned does not change.
type Batch struct {
	Arrays []Descriptor
	Main   int

	bytes, mainBytes int64
	rowBytes         []int64 // size of a row of each array, in bytes
}

// NewBatch lays arrays out one after the other in a Batch. The first main ones are its main arrays.
func NewBatch(main int, arrays ...Descriptor) Batch {
	b := Batch{Arrays: slices.Clone(arrays), Main: main}
	for i := range b.Arrays {
		b.Arrays[i].Offset = b.bytes
		b.bytes += b.Arrays[i].Bytes()
		b.rowBytes = append(b.rowBytes, b.Arrays[i].Bytes()/int64(append(b.Arrays[i].Shape, 1)[0]))
		if i < main {
			b.mainBytes = b.bytes
		}
	}
	return b
}

// Bytes returns the size of all arrays in bytes.
func (b Batch) Bytes() int64 { return b.bytes }

// MainBytes returns the size of the main arrays in bytes.
func (b Batch) MainBytes() int64 { return b.mainBytes }

// RowBytes returns the size in bytes of a row, an element along the first axis, of array i.
func (b Batch) RowBytes(i int) int64 { return b.rowBytes[i] }

// Stack describes the main arrays as one: its shape is (2, B, T) for x and y of shape (B, T). A
// single main array keeps its shape. The caller may change the shape.
func (b Batch) Stack() Descriptor {
	first := b.Arrays[0]
	shape := slices.Clone(first.Shape)
	if b.Main > 1 {
		shape = slices.Insert(shape, 0, b.Main)
	}
	return Descriptor{DType: first.DType, Shape: shape}
}
