package format

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"batchfs/cache/array"
)

// A header has the requested size, is what NumPy writes, and is read as what was written.
func TestNpyHeader(t *testing.T) {
	for _, test := range []struct {
		size  int
		dtype array.DType
		shape []int
		want  string
	}{
		{4096, array.Int64, []int{7, 2, 12, 1024}, "\x93NUMPY\x01\x00\xf6\x0f{'descr': '<i8', 'fortran_order': False, 'shape': (7, 2, 12, 1024), }  "},
		{128, array.Uint16, []int{7}, "\x93NUMPY\x01\x00v\x00{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }  "},
	} {
		h := NpyHeader(test.size, test.dtype, test.shape...)
		if len(h) != test.size || int(binary.LittleEndian.Uint16(h[8:]))+10 != len(h) || !strings.HasPrefix(string(h), test.want) || h[len(h)-1] != '\n' {
			t.Errorf("%d bytes, %q", len(h), h[:min(100, len(h))])
		}
		count := 1
		for _, axis := range test.shape {
			count *= axis
		}
		content := append(h, make([]byte, count*test.dtype.Size())...)
		f, err := newInput("a.npy", content, Options{}, nil).Format()
		if err != nil || f.Offset != int64(test.size) || f.DType != test.dtype || fmt.Sprint(f.Count, f.Axes) != fmt.Sprint(test.shape[0], test.shape[1:]) {
			t.Errorf("%v %v is read as %+v, %v", test.dtype, test.shape, f, err)
		}
	}
}
