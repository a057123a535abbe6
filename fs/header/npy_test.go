package header

import (
	"encoding/binary"
	"strings"
	"testing"

	"batchfs/cache/array"
)

func TestNPY(t *testing.T) {
	h := NPY(array.Int64, 7, 2, 12, 1024)
	if len(h) != Bytes || int(binary.LittleEndian.Uint16(h[8:]))+10 != len(h) || h[len(h)-1] != '\n' {
		t.Errorf("%d bytes, %d by its own word", len(h), binary.LittleEndian.Uint16(h[8:])+10)
	}
	if want := "\x93NUMPY\x01\x00\xf6\x0f{'descr': '<i8', 'fortran_order': False, 'shape': (7, 2, 12, 1024), }  "; !strings.HasPrefix(string(h), want) {
		t.Errorf("%q", h[:100])
	}
}
