package array

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestDTypes(t *testing.T) {
	for _, d := range DTypes() {
		if got := FromSafetensors(d.Safetensors()); got != d {
			t.Errorf("%s is %q", d.Safetensors(), got)
		}
		if got := FromNumPy(d.NumPy()); got != d && d != BFloat16 {
			t.Errorf("%s is %q", d.NumPy(), got)
		}
		if !d.Known() || !strings.HasSuffix(d.NumPy(), fmt.Sprint(d.Size())) {
			t.Errorf("%s: known %v, %s of %d bytes", d, d.Known(), d.NumPy(), d.Size())
		}
	}
	for _, foreign := range []string{"", "<U2", ">u2", "u2", "<V2", "|O", "<c8", "|S1", "<M8[ns]"} {
		if got := FromNumPy(foreign); got != "" {
			t.Errorf("%q is %s", foreign, got)
		}
	}
}

func TestBatch(t *testing.T) {
	x := Descriptor{Name: "x", DType: Uint16, Shape: []int{3, 5}}
	y := Descriptor{Name: "y", DType: Uint16, Shape: []int{3, 5}}
	mask := Descriptor{Name: "mask", DType: Int64, Shape: []int{3, 2}}
	number := Descriptor{Name: "number", DType: Uint32}
	for _, test := range []struct {
		batch       Batch
		bytes, main int64
		shape       []int // shape of Stack
	}{
		{NewBatch(2, x, y), 60, 60, []int{2, 3, 5}},
		{NewBatch(1, x), 30, 30, []int{3, 5}},
		{NewBatch(2, x, y, mask), 108, 60, []int{2, 3, 5}},
		{NewBatch(2, x, y, mask, number), 112, 60, []int{2, 3, 5}},
		{NewBatch(1, x, y), 60, 30, []int{3, 5}},
	} {
		b := test.batch
		if b.Bytes() != test.bytes || b.MainBytes() != test.main {
			t.Errorf("%+v: %d bytes, %d of them main, want %d and %d", b, b.Bytes(), b.MainBytes(), test.bytes, test.main)
		}
		for i, a := range b.Arrays {
			if want := []int64{0, 30, 60, 108}[i]; a.Offset != want {
				t.Errorf("%s at %d, want %d", a.Name, a.Offset, want)
			}
		}
		if got, want := b.Stack(), (Descriptor{DType: Uint16, Shape: test.shape}); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: stacked %+v, want %+v", b, got, want)
		}
	}
}
