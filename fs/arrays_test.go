package fs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/format"
	"batchfs/fs/header"
)

// manyArrays returns a sequence of as many arrays as allowed, with the longest names and all
// dtypes.
func manyArrays(rows int) *fakeSequence {
	list := []array.Descriptor{{Name: "x", DType: array.Uint16, Shape: []int{rows, 5}}, {Name: "y", DType: array.Uint16, Shape: []int{rows, 5}}}
	dtypes := array.DTypes()
	for i := len(list); i < array.MaxArrays; i++ {
		a := array.Descriptor{Name: fmt.Sprintf("%032d", i), DType: dtypes[i%len(dtypes)], Shape: []int{rows}}
		if i%2 == 0 {
			a.Shape = append(a.Shape, i, 3)
		}
		list = append(list, a)
	}
	batch := array.NewBatch(2, list...)
	s := countingBatches("train", batch.Bytes())
	s.Batch = batch
	return s
}

// contentOf returns what a file must contain, given its name. The header has headerLen bytes.
func contentOf(s *fakeSequence, name string) (content []byte, headerLen int) {
	var k, steps uint64 = 0, 1
	arr, size := s.Batch.Stack(), s.Batch.MainBytes()
	switch {
	case strings.HasPrefix(name, "batches"):
		steps = s.Steps
	case name == "sequence.bin":
		steps, size = s.MaxSteps, s.Batch.Bytes()
	}
	fmt.Sscanf(name, "batch/%d", &k)
	if strings.HasSuffix(name, ".json") {
		return fmt.Appendf(nil, "%20d\n", k), 0
	}
	for _, a := range s.Batch.Arrays {
		if strings.HasSuffix(name, "."+a.Name+".npy") {
			arr, size = a, a.Bytes()
		}
	}
	from, shape := arr.Offset, arr.Shape
	switch {
	case strings.HasSuffix(name, ".npy") && strings.HasPrefix(name, "batches"):
		shape = append([]int{int(steps)}, shape...)
		fallthrough
	case strings.HasSuffix(name, ".npy"):
		content = format.NpyHeader(header.Bytes, arr.DType, shape...)
	case strings.HasSuffix(name, ".safetensors"):
		content = header.Safetensors(s.Batch, s.Metadata, k)
		size = s.Batch.Bytes()
	}
	headerLen = len(content)
	for ; steps > 0; steps-- {
		part := make([]byte, size)
		s.Read(part, k, from)
		content = append(content, part...)
		k++
	}
	return content, headerLen
}

// A read of any range of a file returns that slice of its content.
func TestAnyReadIsASlice(t *testing.T) {
	three := countingBatches("train", 120)
	three.Batch = array.NewBatch(2,
		array.Descriptor{Name: "x", DType: array.Uint16, Shape: []int{2, 5}},
		array.Descriptor{Name: "y", DType: array.Uint16, Shape: []int{2, 5}},
		array.Descriptor{Name: "mask", DType: array.Int64, Shape: []int{10}},
	)
	for _, s := range []*fakeSequence{countingBatches("train", 2), countingBatches("train", 100), countingBatches("train", 5000), three, manyArrays(3)} {
		tr := newTestTree(t, s)
		names := []string{"next", "next.npy", "next.safetensors", "batches.bin", "batches.npy", "sequence.bin"}
		for _, k := range []uint64{0, 3, 1<<arrayShift - 1} {
			names = append(names, fmt.Sprintf("batch/%d", k), fmt.Sprintf("batch/%d.npy", k), fmt.Sprintf("batch/%d.safetensors", k), fmt.Sprintf("batch/%d.json", k))
			for _, a := range s.Batch.Arrays[s.Batch.Main:] {
				names = append(names, fmt.Sprintf("batch/%d.%s.npy", k, a.Name))
			}
		}
		for _, a := range s.Batch.Arrays[s.Batch.Main:] {
			names = append(names, fmt.Sprintf("batches.%s.npy", a.Name))
		}
		for _, name := range names {
			for n := range 100 {
				next := fmt.Sprint("batch/", tr.shared.Sequences[1].Cursor.Load())
				want, headerLen := contentOf(s, strings.Replace(name, "next", next, 1))
				r := tr.openFile(t, "train/"+name, 0)
				if size := tr.size(r.node, s); size != int64(len(want)) {
					t.Fatalf("%s has %d bytes, want %d", name, size, len(want))
				}
				off, length := 0, len(want)+1
				switch {
				case n%2 == 1:
					off, length = rand.IntN(len(want)+10), 1+rand.IntN(len(want))
				case n > 0: // a few bytes around the end of the header
					off, length = max(headerLen+rand.IntN(200)-100, 0), 1+rand.IntN(200)
				}
				from := min(off, len(want))
				if got, status := r.read(int64(off), length); !status.Ok() || !bytes.Equal(got, want[from:min(from+length, len(want))]) {
					t.Fatalf("%s at %d, length %d of %d: %v, %d wrong bytes", name, off, length, len(want), status, len(got))
				}
				r.close()
			}
		}
	}
}

// Each array besides the main ones has its own files, which README describes. The main arrays have
// none.
func TestArrayFiles(t *testing.T) {
	tr := newTestTree(t, manyArrays(3))
	listed := 0
	for _, e := range tr.listDir(tr.find("train"), 0) {
		if inode(e.Ino).kind() == batchesArrayNPY {
			listed++
		}
	}
	if listed != array.MaxArrays-2 {
		t.Errorf("%d files of one array are listed, of %d", listed, array.MaxArrays-2)
	}
	for _, name := range []string{"batch/0.x.npy", "batches.x.npy", "batch/0.none.npy", "batches.none.npy", "batch/.mask.npy",
		"batch/0.%.npy", fmt.Sprintf("batch/%d.%%.npy", 3<<arrayShift), "batches.%.npy",
		fmt.Sprintf("batch/%d.%032d.npy", 1<<arrayShift, 2), fmt.Sprintf("batch/00.%032d.npy", 2), fmt.Sprintf("batch/0.%032d", 2), fmt.Sprintf("batches.%032d.bin", 2)} {
		if i := tr.find("train/" + name); i != noSuchInode {
			t.Errorf("%s has inode %#x", name, i)
		}
	}
	want := []string{`x, y = numpy.load("/mnt/train/next.npy")`}
	for _, e := range kindTable {
		name := strings.Replace(e.name, "%", "<array>", 1)
		if e.parent == batchDir {
			name = "batch/<k>" + name
		}
		if !e.kind.isDir() && e.parent != rootDir {
			want = append(want, "\n  "+name+" ")
		}
	}
	for _, want := range want {
		if text := string(tr.readme(0, nil)); !strings.Contains(text, want) {
			t.Errorf("README lacks %q:\n%s", want, text)
		}
	}
}

// Every header is headerBytes long, whatever the arrays are. cmd/batchfs limits the metadata.
func TestLongestHeaders(t *testing.T) {
	// The product of many axes is a large but valid size.
	axes := make([]int, 30)
	for i := range axes {
		axes[i] = 1
	}
	axes[0], axes[1] = 1<<24, 1<<30
	var list []array.Descriptor
	for i := range array.MaxArrays {
		list = append(list, array.Descriptor{Name: fmt.Sprintf("%032d", i), DType: array.BFloat16, Shape: axes})
	}
	s := countingBatches("train", 100)
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
