package fs

import (
	"fmt"
	"strings"
)

const npyHeaderSize = 4096

// NPYHeader is the header of a .npy file, version 1.0, of an array in C order of little-endian dtype ("uint16"), of two dimensions or more. It is
// padded to a page, so that a mapped array begins at one, and so that a C program's fseek to the array does not read the
// file's first page again, which to next would mean the next batch.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
func NPYHeader(dtype string, shape ...int) []byte {
	dims := make([]string, len(shape))
	for i, n := range shape {
		dims[i] = fmt.Sprint(n)
	}
	descr := map[string]string{"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}[dtype]
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, strings.Join(dims, ", "))
	const prefix = 10 // magic, version, length of what follows
	dict += strings.Repeat(" ", npyHeaderSize-prefix-len(dict)-1) + "\n"
	return append([]byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(dict)), byte(len(dict) >> 8)})), dict...)
}
