package fs

import (
	"fmt"
	"strings"
)

// stdioBlock is what C's stdio reads at once, because every file has it as its st_blksize.
const stdioBlock = 4096

// NPYHeader is the header of a .npy file, version 1.0, of an array in C order of little-endian dtype ("uint16"), of two
// dimensions or more. It is padded to a page, so that a mapped array begins at one, and so that stdio's fseek to the array
// does not read the beginning of the file again, which to next would mean the next batch.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
func NPYHeader(dtype string, shape ...int) []byte {
	descr := map[string]string{"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}[dtype]
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, dims(shape))
	const prefix = 10 // magic, version, length of what follows
	dict += strings.Repeat(" ", stdioBlock-prefix-len(dict)-1) + "\n"
	return append([]byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(dict)), byte(len(dict) >> 8)})), dict...)
}

// dims is a shape as NumPy writes it, without parentheses.
func dims(shape []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ", "), "[]")
}
