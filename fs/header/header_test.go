package header

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"testing"

	"batchfs/cache/array"
)

func TestSafetensors(t *testing.T) {
	batch := array.NewBatch(2,
		array.Descriptor{Name: "x", DType: array.Uint16, Shape: []int{2, 5}},
		array.Descriptor{Name: "y", DType: array.Uint16, Shape: []int{2, 5}},
		array.Descriptor{Name: "mask", DType: array.Int64, Shape: []int{10}},
	)
	h := Safetensors(batch, map[string]string{"fingerprint": "f"}, 7)
	if n := binary.LittleEndian.Uint64(h); len(h) != Bytes || n != Bytes-8 {
		t.Fatalf("%d bytes, but its length field says %d", len(h), n+8)
	}
	var got map[string]struct {
		DType              string
		Shape              []int
		Offsets            []int64 `json:"data_offsets"`
		Batch, Fingerprint string
	}
	if err := json.Unmarshal(h[8:], &got); err != nil {
		t.Fatal(err)
	}
	const want = "{U16 [2 5] [0 20]  } {U16 [2 5] [20 40]  } {I64 [10] [40 120]  } { [] [] 7 f}"
	if got := fmt.Sprint(got["x"], got["y"], got["mask"], got["__metadata__"]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
