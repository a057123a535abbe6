// Package header describes the layout of files of batches as a [Frame], and encodes their headers.
package header

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

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

// Bytes is the length of every header: a page, so that a mapped array is aligned, and so that C's
// fseek to the array does not read the header again, which would take the next batch of next.npy.
const Bytes = 4096

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

// Safetensors returns the header of a .safetensors file of batch k: the length of the rest as a
// little-endian uint64, then JSON with the tensors, the metadata and k, padded with spaces.
//
// Format: https://huggingface.co/docs/safetensors
func Safetensors(batch array.Batch, metadata map[string]string, k uint64) []byte {
	type tensor struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	all := map[string]string{"batch": fmt.Sprint(k)}
	maps.Copy(all, metadata)
	header := map[string]any{"__metadata__": all}
	for _, a := range batch.Arrays {
		header[a.Name] = tensor{a.DType.Safetensors(), a.Shape, [2]int64{a.Offset, a.Offset + a.Bytes()}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // impossible for these types
	}
	const prefix = 8
	padding := strings.Repeat(" ", Bytes-prefix-len(text))
	return append(append(binary.LittleEndian.AppendUint64(nil, Bytes-prefix), text...), padding...)
}
