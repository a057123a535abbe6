package fs

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

func TestInodeIdentifiesFile(t *testing.T) {
	if rootInode != fuse.FUSE_ROOT_ID {
		t.Errorf("the root is inode %d", rootInode)
	}
	for range 1000 {
		sequence, k, a, v := 1+rand.IntN(state.MaxSequences-1), rand.Uint64N(MaxBatches), rand.IntN(array.MaxArrays), Version(rand.Uint64N(1<<20))
		old, current := &fakeBatchList{spec: Spec{Version: v}}, &fakeBatchList{spec: Spec{Version: v + 1 + Version(rand.Uint64N(7))}}
		old.Batch.Arrays, current.Batch.Arrays = make([]array.Descriptor, array.MaxArrays), make([]array.Descriptor, array.MaxArrays)
		inArray := k % (1 << arrayShift)
		for i, batch := range map[inode]uint64{
			makeInode(batchRaw, sequence, k):                    k,
			makeInode(batchesRaw, sequence, 0):                  0,
			makeInode(tokensFile, sequence, 0):                  0,
			makeInode(sequenceFile, sequence, k):                0,
			makeArrayInode(batchArrayNPY, sequence, a, inArray): inArray,
			makeArrayInode(batchesArrayNPY, sequence, a, 0):     0,
		} {
			file := i.withVersion(v)
			if file.kind() != i.kind() || file.sequence() != sequence || file.firstBatch() != batch || i.kind().showsOneArray() && file.array() != a {
				t.Fatalf("%#x is kind %d, sequence %d, batch %d, array %d", file, file.kind(), file.sequence(), file.firstBatch(), file.array())
			}
			if file.outdated(old) || !file.outdated(current) || file != file.withVersion(v) {
				t.Fatalf("%#x of version %d is taken for one of %d", file, v, current.Version)
			}
		}
		if makeInode(nextRaw, sequence, 0).outdated(current) {
			t.Fatal("next is outdated")
		}
	}
}

// Files keep their inode numbers, because the kernel remembers them when another version of the
// program takes over. If this fails, mend the code instead of the numbers. Only files of new kinds
// may be added.
func TestInodeNumbersStay(t *testing.T) {
	split := countingBatches("train", 100)
	split.Version, split.MaxSteps = 0x1d, 0x700
	main := array.Descriptor{DType: array.Uint16, Shape: []int{2, 5}}
	x, y, mask := main, main, main
	x.Name, y.Name, mask.Name = "x", "y", "mask"
	split.Batch = array.NewBatch(2, x, y, mask)
	tr := newTestTree(t, countingBatches("val", 100), split)
	seen := map[kind]bool{rootDir: true} // TestInodeIdentifiesFile checks the root
	for path, want := range map[string]inode{
		"README": 0x2, "status.json": 0x3, "metrics": 0x4,
		"val": 0x108, "val/batch/0": 0x10e, "val/batch/1099511627775": 0xffffffffff00010e,
		"train": 0x208, "train/next": 0x20a, "train/next.npy": 0x20b, "train/next.safetensors": 0x212, "train/cursor": 0x20c, "train/info.json": 0x20d,
		"train/batch": 0x209, "train/batch/17": 0x110002ae, "train/batch/17.npy": 0x110002af, "train/batch/17.safetensors": 0x110002b3,
		"train/batch/17.json": 0x110002b4, "train/batch/17.mask.npy": 0x20000000110002b5,
		"train/batches.bin": 0x1d000210, "train/batches.npy": 0x1d000211, "train/batches.mask.npy": 0x200000001d000216,
		"train/sequence.bin": 0x6ff0002b8, "train/tokens.bin": 0x1d000217,
		"train/seed=7": 0x552283752b000308, "train/seed=7/next": 0x30a, "train/seed=7/batch": 0x552283752b000309, "train/seed=7/batch/17": 0x1100030e,
	} {
		got := tr.find(path)
		if seen[got.kind()] = true; got != want {
			t.Errorf("%s has the inode %#x, and had %#x in earlier versions", path, got, want)
		}
	}
	for _, e := range kindTable {
		if !seen[e.kind] {
			t.Errorf("add a file of the new kind %d, whose name is %q, to this test", e.kind, e.name)
		}
	}
}

// A file of a kind that only a later version of the program has cannot be read, and no worker
// panics.
func TestUnknownKind(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 1000))
	header := fuse.InHeader{NodeId: uint64(makeInode(maxKinds-1, 1, 0))}
	tr.GetAttr(nil, &fuse.GetAttrIn{InHeader: header}, new(fuse.AttrOut))
	if _, status := tr.HandleRead(nil, 0, &fuse.ReadIn{InHeader: header, Size: 10}, make([]byte, 10)); status != fuse.Status(syscall.ESTALE) {
		t.Errorf("a READ returns %v", status)
	}
}
