// Package header makes the headers of files of batches.
package header

import (
	"fmt"
	"strings"

	"batchfs/cache/array"
)

// Bytes is how long every header is: a page, so that a mapped array is aligned.
const Bytes = 4096

// NPY is the header of a .npy file, version 1.0, of an array in C order of little-endian numbers, of one dimension or
// more. It is 4096 bytes long: a mapped array is then aligned, and C's fseek to the array does not read the beginning of the
// file again, which for next would be the next batch.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
func NPY(dtype array.DType, shape ...int) []byte {
	tuple := Dims(shape)
	if len(shape) == 1 {
		tuple += ","
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", dtype.NumPy(), tuple)
	const prefix = 10 // magic, version, length of the rest
	dict += strings.Repeat(" ", Bytes-prefix-len(dict)-1) + "\n"
	return append([]byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(dict)), byte(len(dict) >> 8)})), dict...)
}

// Dims is a shape as NumPy writes it, without parentheses.
func Dims(shape []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ", "), "[]")
}
