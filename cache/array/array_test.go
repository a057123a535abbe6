package array

import (
	"reflect"
	"testing"
)

func TestDTypes(t *testing.T) {
	for _, test := range []struct {
		dtype              DType
		size               int
		numPy, safetensors string
	}{
		{Bool, 1, "|b1", "BOOL"},
		{Uint8, 1, "|u1", "U8"},
		{Int8, 1, "|i1", "I8"},
		{Uint16, 2, "<u2", "U16"},
		{Int16, 2, "<i2", "I16"},
		{Uint32, 4, "<u4", "U32"},
		{Int32, 4, "<i4", "I32"},
		{Uint64, 8, "<u8", "U64"},
		{Int64, 8, "<i8", "I64"},
		{Float16, 2, "<f2", "F16"},
		{BFloat16, 2, "<u2", "BF16"},
		{Float32, 4, "<f4", "F32"},
		{Float64, 8, "<f8", "F64"},
	} {
		d := test.dtype
		if !d.Known() || d.Size() != test.size || d.NumPy() != test.numPy || d.Safetensors() != test.safetensors {
			t.Errorf("%s: known %v, size %d, %s, %s", d, d.Known(), d.Size(), d.NumPy(), d.Safetensors())
		}
		if got := FromSafetensors(test.safetensors); got != d {
			t.Errorf("%s is %q", test.safetensors, got)
		}
		if got := FromNumPy(test.numPy); got != d && d != BFloat16 {
			t.Errorf("%s is %q", test.numPy, got)
		}
	}
	if len(DTypes()) != 13 {
		t.Errorf("%d dtypes, of which 13 are tested", len(DTypes()))
	}
	for _, foreign := range []string{"", "<U2", ">u2", "u2", "<V2", "|O", "<c8", "|S1", "<M8[ns]"} {
		if got := FromNumPy(foreign); got != "" {
			t.Errorf("%q is %s", foreign, got)
		}
	}
}

func TestBatch(t *testing.T) {
	x := Array{Name: "x", DType: Uint16, Shape: []int{3, 5}}
	y := Array{Name: "y", DType: Uint16, Shape: []int{3, 5}}
	mask := Array{Name: "mask", DType: Int64, Shape: []int{3, 2}}
	number := Array{Name: "number", DType: Uint32}
	for _, test := range []struct {
		batch       Batch
		bytes, main int64
		shape       []int // of Stack
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
		got := b.Stack()
		if want := (Array{DType: Uint16, Shape: test.shape}); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: stacked %+v, want %+v", b, got, want)
		}
		if got.Bytes() != b.MainBytes() {
			t.Errorf("%+v: %d bytes stacked, %d main", b, got.Bytes(), b.MainBytes())
		}
		got.Shape[0] = -1
	}
	if x.Shape[0] != 3 {
		t.Error("the shape of Stack is that of an array")
	}
}
