package fs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"batchfs/cache/array"
)

// Of a batch with an array beside x and y, raw files and .npy show x and y, and .safetensors shows all three.
func TestArraysBesideTheMainOnes(t *testing.T) {
	const size, main = 2*10*2 + 10*8, 2 * 10 * 2
	s := counting("train", size)
	s.Batch = array.NewBatch(2,
		array.Array{Name: "x", DType: array.Uint16, Shape: []int{2, 5}},
		array.Array{Name: "y", DType: array.Uint16, Shape: []int{2, 5}},
		array.Array{Name: "mask", DType: array.Int64, Shape: []int{10}},
	)
	tr := plant(t, s)
	batch := func(k uint64, n int) []byte {
		dst := make([]byte, n)
		s.Read(dst, k, 0)
		return dst
	}
	read := func(path string) []byte {
		t.Helper()
		r := tr.reader(t, path, 0)
		data, status := r.read(0, 1<<20)
		if !status.Ok() || int64(len(data)) != tr.size(r.node, s) {
			t.Fatalf("%s: %v, %d bytes", path, status, len(data))
		}
		return data
	}
	var all []byte
	for k := range s.Steps {
		all = append(all, batch(k, main)...)
		for _, path := range []string{"train/next", fmt.Sprintf("train/batch/%d", k)} {
			if got := read(path); !bytes.Equal(got, batch(k, main)) {
				t.Errorf("%s, batch %d: %x", path, k, got)
			}
		}
		npy := read(fmt.Sprintf("train/batch/%d.npy", k))
		if !strings.Contains(string(npy[:headerBytes]), "'<u2', 'fortran_order': False, 'shape': (2, 2, 5), ") || !bytes.Equal(npy[headerBytes:], batch(k, main)) {
			t.Errorf("batch %d.npy: %.100q", k, npy)
		}
		safe := read(fmt.Sprintf("train/batch/%d.safetensors", k))
		var header map[string]struct {
			DType   string `json:"dtype"`
			Shape   []int
			Offsets []int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(safe[8:8+binary.LittleEndian.Uint64(safe)], &header); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(header["x"], header["y"], header["mask"]); got != "{U16 [2 5] [0 20]} {U16 [2 5] [20 40]} {I64 [10] [40 120]}" {
			t.Errorf("tensors %s", got)
		}
		if !bytes.Equal(safe[headerBytes:], batch(k, size)) {
			t.Errorf("batch %d.safetensors: %x", k, safe[headerBytes:])
		}
	}
	if got := read("train/batches.bin"); !bytes.Equal(got, all) {
		t.Errorf("batches.bin: %x", got)
	}
	r := tr.reader(t, "train/batches.bin", 0)
	for off := range len(all) {
		for _, n := range []int{1, 39, 40, 41, 100} {
			if got, status := r.read(int64(off), n); !status.Ok() || !bytes.Equal(got, all[off:min(off+n, len(all))]) {
				t.Fatalf("%d bytes of batches.bin at %d: %v %x", n, off, status, got)
			}
		}
	}
	if text := string(tr.texts.readme); !strings.Contains(text, `x, y = numpy.load("/mnt/train/next.npy")`) {
		t.Errorf("README says\n%s", text)
	}
}
