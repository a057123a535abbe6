package header

import "batchfs/cache/array"

// A Format is the format of a file of batches.
type Format uint8

const (
	FormatRaw Format = iota // no header
	FormatNPY
	FormatSafetensors
)

// A Frame says what a file of batches holds: a header, unless its format is raw, and some of the
// bytes of each batch.
type Frame struct {
	Format  Format
	Batch   *array.Batch
	Array   int    // index of the only array shown; AllArrays: the main ones, or all in a .safetensors file
	Batches uint64 // length of the first dimension; 0: the file is of one batch and has no such dimension
}

// AllArrays is the Array of a Frame that shows more than one.
const AllArrays = -1

// ByteRange returns which bytes of each batch the file holds: size bytes that begin at byte from.
func (f Frame) ByteRange() (from, size int64) {
	switch {
	case f.Format == FormatSafetensors:
		return 0, f.Batch.Bytes()
	case f.Array != AllArrays:
		a := &f.Batch.Arrays[f.Array]
		return a.Offset, a.Bytes()
	}
	return 0, f.Batch.MainBytes()
}

// Size returns the size of the file.
func (f Frame) Size() int64 {
	_, size := f.ByteRange()
	size *= int64(max(f.Batches, 1))
	if f.Format != FormatRaw {
		size += Bytes
	}
	return size
}

// Header returns the header of a file that is not raw. A .safetensors file is of batch k, and has
// metadata besides that number.
func (f Frame) Header(k uint64, metadata map[string]string) []byte {
	if f.Format == FormatSafetensors {
		return Safetensors(*f.Batch, metadata, k)
	}
	shown := f.Batch.Stack()
	if f.Array != AllArrays {
		shown = f.Batch.Arrays[f.Array]
	}
	shape := shown.Shape
	if f.Batches > 0 {
		shape = append([]int{int(f.Batches)}, shape...)
	}
	return NPY(shown.DType, shape...)
}
