package fs

import (
	"fmt"
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
			old := i.ofVersion(v)
			if old.kind() != i.kind() || old.sequence() != sequence || old.firstBatch() != batch || i.kind().isOfOneArray() && old.array() != a {
				t.Fatalf("%#x is kind %d, sequence %d, batch %d, array %d", old, old.kind(), old.sequence(), old.firstBatch(), old.array())
			}
			if old.outdated(was) || !old.outdated(now) || old != old.ofVersion(v) {
				t.Fatalf("%#x of version %d is taken for one of %d", old, v, now.Version)
			}
		}
		if makeInode(nextRaw, sequence, 0).outdated(now) {
			t.Fatal("next is outdated")
		}
	}
}

// A directory is in one place: every name that settings are looked up by is another, and the same again is the same.
func TestInodesOfSettings(t *testing.T) {
	train, val := makeInode(splitDir, 1, 0), makeInode(splitDir, 2, 0)
	seen := map[inode]string{train: "train", val: "val"}
	for _, dir := range []inode{train, val, settingsDir(3, train, "seed=1")} {
		for i := range 1000 {
			name := fmt.Sprint("seed=", i)
			d := settingsDir(3, dir, name)
			if d.kind() != splitDir || d.sequence() != 3 || d != settingsDir(3, dir, name) || seen[d] != "" {
				t.Fatalf("%s in %#x is %#x, as is %q", name, dir, d, seen[d])
			}
			seen[d] = name
		}
	}
	if settingsDir(3, train, "seed=1") == settingsDir(4, train, "seed=1") {
		t.Error("two sequences have a directory")
	}
}
