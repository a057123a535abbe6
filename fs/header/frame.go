package header

import (
	"batchfs/cache/array"
	"batchfs/cache/format"
)

// A Format is the file format of a file of batches.
type Format uint8

const (
	FormatRaw Format = iota // no header
	FormatNPY
	FormatSafetensors
)

// A Frame is the layout of a file of batches: a header, unless the format is raw, and then some
// bytes of each batch. Its methods are safe for concurrent use.
type Frame struct {
	Format  Format
	Batch   *array.Batch
	Array   int    // index of the only array in the file, MainArrays or AllArrays
	Batches uint64 // length of the first axis, in batches; 0 for one batch without such an axis
}

const (
	MainArrays = -1 // in safetensors format, all arrays
	AllArrays  = -2 // not in .npy format
)

// ByteRange returns which part of each batch's bytes the file has.
func (f Frame) ByteRange() (from, size int64) {
	switch {
	case f.Format == FormatSafetensors, f.Array == AllArrays:
		return 0, f.Batch.Bytes()
	case f.Array == MainArrays:
		return 0, f.Batch.MainBytes()
	}
	a := &f.Batch.Arrays[f.Array]
	return a.Offset, a.Bytes()
}

// Size returns the size of the file, in bytes.
func (f Frame) Size() int64 {
	_, size := f.ByteRange()
	size *= int64(max(f.Batches, 1))
	if f.Format != FormatRaw {
		size += Bytes
	}
	return size
}

// Header returns the header of a file that is not raw. Only safetensors uses the batch number k and
// the metadata.
func (f Frame) Header(k uint64, metadata map[string]string) []byte {
	if f.Format == FormatSafetensors {
		return Safetensors(*f.Batch, metadata, k)
	}
	a := f.Batch.Stack()
	if f.Array != MainArrays {
		a = f.Batch.Arrays[f.Array]
	}
	shape := a.Shape
	if f.Batches > 0 {
		shape = append([]int{int(f.Batches)}, shape...)
	}
	return format.NpyHeader(Bytes, a.DType, shape...)
}
