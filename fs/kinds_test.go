package fs

import (
	"math/rand/v2"
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
