package fs

import (
	"math/rand/v2"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// An inode says the kind of a file, its sequence, batch, array and version of the tokens.
func TestInodeSaysWhatAFileIs(t *testing.T) {
	if rootInode != fuse.FUSE_ROOT_ID {
		t.Errorf("the root is inode %d", rootInode)
	}
	for range 1000 {
		sequence, k, a, v := 1+rand.IntN(state.MaxSequences-1), rand.Uint64N(MaxBatches), rand.IntN(array.Most), Version(rand.Uint64N(1<<20))
		was, now := &fake{spec: Spec{Version: v}}, &fake{spec: Spec{Version: v + 1 + Version(rand.Uint64N(7))}}
		was.Batch.Arrays, now.Batch.Arrays = make([]array.Array, array.Most), make([]array.Array, array.Most)
		inArray := k % (1 << arrayShift)
		for i, batch := range map[inode]uint64{
			makeInode(batchRaw, sequence, k):                    k,
			makeInode(batchesRaw, sequence, 0):                  0,
			makeInode(tokensFile, sequence, 0):                  0,
			makeArrayInode(batchArrayNPY, sequence, a, inArray): inArray,
			makeArrayInode(batchesArrayNPY, sequence, a, 0):     0,
		} {
			old := i.withVersion(v)
			if old.kind() != i.kind() || old.sequence() != sequence || old.firstBatch() != batch || i.kind().showsOneArray() && old.array() != a {
				t.Fatalf("%#x is kind %d, sequence %d, batch %d, array %d", old, old.kind(), old.sequence(), old.firstBatch(), old.array())
			}
			if old.outdated(was) || !old.outdated(now) || old != old.withVersion(v) {
				t.Fatalf("%#x of version %d is taken for one of %d", old, v, now.Version)
			}
		}
		if makeInode(nextRaw, sequence, 0).outdated(now) {
			t.Fatal("next is outdated")
		}
	}
}
