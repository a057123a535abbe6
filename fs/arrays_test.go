package fs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/fs/header"
	"batchfs/fs/state"
)

// manyArrays is a sequence of batches of as many arrays as there may be, of all dtypes, with names as long as they may be.
func manyArrays(rows int) *fake {
	list := []array.Array{{Name: "x", DType: array.Uint16, Shape: []int{rows, 5}}, {Name: "y", DType: array.Uint16, Shape: []int{rows, 5}}}
	dtypes := array.DTypes()
	for i := len(list); i < array.Most; i++ {
		a := array.Array{Name: fmt.Sprintf("%032d", i), DType: dtypes[i%len(dtypes)], Shape: []int{rows}}
		if i%2 == 0 {
			a.Shape = append(a.Shape, i, 3)
		}
		list = append(list, a)
	}
	batch := array.NewBatch(2, list...)
	s := counting("train", batch.Bytes())
	s.Batch = batch
	return s
}

// Each array beside the main ones has a file of each batch, and one of all batches, which show it alone, from any byte on.
func TestFilesOfOneArray(t *testing.T) {
	s := manyArrays(3)
	tr := plant(t, s)
	listed := 0
	for _, e := range tr.entries(tr.find("train")) {
		if e.inode.kind() == batchesArrayNPY {
			listed++
		}
	}
	if listed != array.Most-2 {
		t.Errorf("%d files of one array are listed, of %d", listed, array.Most-2)
	}
	for n, a := range s.Batch.Arrays[2:] {
		var all []byte
		for k := range s.Steps {
			part := make([]byte, a.Bytes())
			s.Read(part, k, a.Offset)
			check(t, tr, s, fmt.Sprintf("train/batch/%d.%s.npy", k, a.Name), a.DType, a.Shape, part)
			all = append(all, part...)
		}
		check(t, tr, s, fmt.Sprintf("train/batches.%s.npy", a.Name), a.DType, append([]int{int(s.Steps)}, a.Shape...), all)
		if i := tr.find(fmt.Sprintf("train/batch/%d.%s.npy", 1<<arrayShift-1, a.Name)); i.array() != n+2 || i.firstBatch() != 1<<arrayShift-1 {
			t.Errorf("the last batch of %s has inode %#x, of array %d and batch %d", a.Name, i, i.array(), i.firstBatch())
		}
	}
	for _, name := range []string{"batch/0.x.npy", "batch/0.y.npy", "batches.x.npy", "batch/0.none.npy", "batches.none.npy", "batch/.mask.npy",
		"batch/0.%.npy", fmt.Sprintf("batch/%d.%%.npy", 3<<arrayShift), "batches.%.npy",
		fmt.Sprintf("batch/%d.%032d.npy", 1<<arrayShift, 2), fmt.Sprintf("batch/00.%032d.npy", 2), fmt.Sprintf("batch/0.%032d", 2), fmt.Sprintf("batches.%032d.bin", 2)} {
		if i := tr.find("train/" + name); i != noSuchInode {
			t.Errorf("%s has inode %#x", name, i)
		}
	}
}

// check reads a file whole and in pieces. It must be a .npy file of an array.
func check(t *testing.T, tr *tree, s *fake, path string, dtype array.DType, shape []int, content []byte) {
	t.Helper()
	want := append(header.NPY(dtype, shape...), content...)
	r := tr.reader(t, path, 0)
	if size := tr.size(r.node, s); size != int64(len(want)) {
		t.Errorf("%s has %d bytes, want %d", path, size, len(want))
	}
	for from := 0; from < len(want); from += 1 + rand.IntN(500) {
		n := 1 + rand.IntN(2000)
		if got, status := r.read(int64(from), n); !status.Ok() || !bytes.Equal(got, want[from:min(from+n, len(want))]) {
			t.Fatalf("%s: %v, %d bytes from %d are\n%x, want\n%x", path, status, n, from, got, want[from:min(from+n, len(want))])
		}
	}
}

// The inode of a file of one array says which, of which batch, sequence and version.
func TestInodesOfOneArray(t *testing.T) {
	for range 1000 {
		sequence, a, k, v := rand.IntN(state.MaxSequences), rand.IntN(array.Most), rand.Uint64N(1<<arrayShift), Version(rand.Uint64N(1<<20))
		for _, kind := range []kind{batchArrayNPY, batchesArrayNPY} {
			i := makeArrayInode(kind, sequence, a, k).ofVersion(v)
			if i.kind() != kind || i.sequence() != sequence || i.array() != a || kind == batchArrayNPY && i.firstBatch() != k || kind == batchesArrayNPY && i.firstBatch() != 0 {
				t.Fatalf("array %d, batch %d, version %d: %#x is of array %d, batch %d", a, k, v, i, i.array(), i.firstBatch())
			}
			if i.ofVersion(v) != i || i.ofVersion(v+1) == i {
				t.Fatalf("%#x at version %d is %#x, and at the next %#x", i, v, i.ofVersion(v), i.ofVersion(v+1))
			}
		}
	}
}

// Every header is a page long, whatever the arrays are. cmd/batchfs bounds what metadata can hold.
func TestLongestHeaders(t *testing.T) {
	// As many axes as there may be, whose product is a size that there is.
	axes := make([]int, 30)
	for i := range axes {
		axes[i] = 1
	}
	axes[0], axes[1] = 1<<24, 1<<30
	var list []array.Array
	for i := range array.Most {
		list = append(list, array.Array{Name: fmt.Sprintf("%032d", i), DType: array.BFloat16, Shape: axes})
	}
	s := counting("train", 100)
	s.Batch = array.NewBatch(1, list...)
	const settings = "batch_size=16777216,block_size=2147483648,dtype=bfloat16,layout=tokens,order=sequential,rank=16777215,seed=9223372036854775807,world=16777216"
	s.Metadata = map[string]string{"sequence": strings.Repeat("<", 100) + "/" + settings, "fingerprint": strings.Repeat("0", 32)}
	s.Steps = 1 << 40
	for _, i := range []inode{makeInode(batchSafe, 1, MaxBatches-1), makeArrayInode(batchesArrayNPY, 1, 15, 0), makeInode(batchesNPY, 1, 0)} {
		if got := i.kind().batches().header(i, s, MaxBatches-1); len(got) != headerBytes || got[len(got)-2] != ' ' {
			t.Errorf("the header of kind %d has %d bytes, the last %q", i.kind(), len(got), got[len(got)-10:])
		}
	}
}

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
