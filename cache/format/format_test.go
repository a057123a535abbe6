package format

import (
	"reflect"
	"strings"
	"testing"

	"batchfs/cache/array"
)

func TestHeaderless(t *testing.T) {
	for _, test := range []struct {
		size  int64
		dtype array.DType
		want  int64  // tokens
		err   string // if there are none
	}{
		{2, array.Uint16, 1, ""},
		{4, array.Uint16, 2, ""},
		{4, array.Uint32, 1, ""},
		{1 << 62, array.Uint32, 1 << 60, ""},
		{0, array.Uint16, 0, "train.bin is empty"},
		{-2, array.Uint16, 0, "train.bin is empty"},
		{5, array.Uint16, 0, "train.bin: 5 bytes are not a whole number of tokens of 2 bytes; is token_dtype right, and is the file complete?"},
		{6, array.Uint32, 0, "train.bin: 6 bytes are not a whole number of tokens of 4 bytes; is token_dtype right, and is the file complete?"},
	} {
		got, err := headerless("train.bin", test.size, test.dtype, nil, "token_dtype")
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%d bytes of %s: error %v, want %s", test.size, test.dtype, err, test.err)
			}
			continue
		}
		must(t, err)
		if want := (Format{Name: "headerless", DType: test.dtype, Count: test.want}); !reflect.DeepEqual(got, want) {
			t.Errorf("%d bytes of %s: %+v, want %+v", test.size, test.dtype, got, want)
		}
		must(t, got.Fits("train.bin", test.size))
		if err := got.Fits("train.bin", test.size-1); err == nil || !strings.HasPrefix(err.Error(), "train.bin: ") {
			t.Errorf("%+v fits %d bytes: error %v", got, test.size-1, err)
		}
	}
}
