package fs

import (
	"fmt"
	"strings"

	"batchfs/cache/array"
)

// headerBytes is how long every header is: a page, so that a mapped array is aligned.
const headerBytes = 4096

// NPYHeader is the header of a .npy file, version 1.0, of an array in C order of little-endian numbers, of one dimension or
// more. It is 4096 bytes long: a mapped array is then aligned, and C's fseek to the array does not read the beginning of the
// file again, which for next would be the next batch.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
func NPYHeader(dtype array.DType, shape ...int) []byte {
	tuple := dims(shape)
	if len(shape) == 1 {
		tuple += ","
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", dtype.NumPy(), tuple)
	const prefix = 10 // magic, version, length of the rest
	dict += strings.Repeat(" ", headerBytes-prefix-len(dict)-1) + "\n"
	return append([]byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(dict)), byte(len(dict) >> 8)})), dict...)
}

// dims is a shape as NumPy writes it, without parentheses.
func dims(shape []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ", "), "[]")
}

// npyHeader stands before one batch.
func npyHeader(s Sequence, _ inode, _ uint64) []byte {
	main := s.Spec().Batch.Stack()
	return NPYHeader(main.DType, main.Shape...)
}

// batchesNPYHeader stands before all batches.
func batchesNPYHeader(s Sequence, _ inode, _ uint64) []byte {
	main := s.Spec().Batch.Stack()
	return NPYHeader(main.DType, append([]int{int(s.Spec().Steps)}, main.Shape...)...)
}

// arrayHeader stands before one array of one batch.
func arrayHeader(s Sequence, i inode, _ uint64) []byte {
	a := s.Spec().Batch.Arrays[i.array()]
	return NPYHeader(a.DType, a.Shape...)
}

// batchesArrayHeader stands before one array of all batches.
func batchesArrayHeader(s Sequence, i inode, _ uint64) []byte {
	a := s.Spec().Batch.Arrays[i.array()]
	return NPYHeader(a.DType, append([]int{int(s.Spec().Steps)}, a.Shape...)...)
}
