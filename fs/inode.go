package fs

import (
	"fmt"
	"hash/fnv"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// An inode is an inode number. The number alone identifies a file, so there is no table of inodes,
// a lookup takes no memory, and every worker agrees with the one before it. It consists of:
//
//	bits 0-4    kind
//	bits 5-7    files in batch/ and sequence.bin: version of the tokens, modulo 8, so that cached
//	            pages of old tokens belong to another inode; others: 0
//	bits 8-23   number of the sequence, from 1; 0 for files and directories of the whole mount
//	bits 24-63  files in batch/: batch number
//	            batches.* and tokens.bin, which stay open for long: version of the tokens
//	            sequence.bin: number of its batches, minus 1, so that an open file keeps its size
//	            when a restart makes the sequence longer
//	            files of a single array: index of the array in the top 4 bits, and one of the above
//	            settings directories and their batch/: hash of the path below the split, because the
//	            kernel allows a directory only one parent
//	            others: 0
type inode uint64

// MaxBatches is one more than the highest batch number.
const MaxBatches = array.MaxBatches

// A kind is a kind of file; see kindTable. Never renumber kinds: the kernel remembers inode
// numbers, which contain them, when another version of the program takes over.
type kind uint8

const (
	rootDir     kind = 1 // FUSE requires 1 for the root
	readmeFile  kind = 2
	statusFile  kind = 3
	metricsFile kind = 4
	splitDir    kind = 8
	batchDir    kind = 9
	nextRaw     kind = 10
	nextNPY     kind = 11
	cursorFile  kind = 12
	infoFile    kind = 13
	batchRaw    kind = 14
	batchNPY    kind = 15
	batchesRaw  kind = 16
	batchesNPY  kind = 17
	nextSafe    kind = 18
	batchSafe   kind = 19
	batchJSON   kind = 20

	batchArrayNPY   kind = 21
	batchesArrayNPY kind = 22
	tokensFile      kind = 23
	sequenceFile    kind = 24

	maxKinds = 32
)

const (
	rootInode   = inode(rootDir)
	noSuchInode = inode(0)
)

func makeInode(k kind, sequence int, rest uint64) inode {
	return inode(rest<<24 | uint64(sequence)<<8 | uint64(k))
}

func (i inode) kind() kind    { return kind(i & (maxKinds - 1)) }
func (i inode) sequence() int { return int(i >> 8 & (state.MaxSequences - 1)) }

// rest returns bits 24-63.
func (i inode) rest() uint64 { return uint64(i >> 24) }

// arrayShift is the position of the array index in the rest of the inode of a file of a single
// array.
const arrayShift = 36

func makeArrayInode(k kind, sequence, array int, rest uint64) inode {
	return makeInode(k, sequence, uint64(array)<<arrayShift|rest)
}

func (i inode) array() int { return int(i.rest() >> arrayShift) }

// firstBatch returns the first batch number of a numbered file.
func (i inode) firstBatch() uint64 {
	switch {
	case i.kind().spansBatches():
		return 0
	case i.kind().showsOneArray():
		return i.rest() & (1<<arrayShift - 1)
	}
	return i.rest()
}

// withVersion returns the inode of the same file with version v of the tokens.
func (i inode) withVersion(v Version) inode {
	switch {
	case !i.kind().spansBatches() || i.kind() == sequenceFile:
		return i&^0xe0 | inode(v%8<<5) // bits 5-7
	case i.kind().showsOneArray():
		return makeArrayInode(i.kind(), i.sequence(), i.array(), uint64(v))
	}
	return makeInode(i.kind(), i.sequence(), uint64(v))
}

// outdated reports whether i is a numbered file of another version than b, or of an array that b
// lacks.
func (i inode) outdated(b BatchList) bool {
	return i.kind().isNumbered() && i != i.withVersion(b.Spec().Version) ||
		i.kind().showsOneArray() && i.array() >= len(b.Spec().Batch.Arrays)
}

// settingsInode returns the inode of the settings directory called name in dir.
func settingsInode(sequence int, dir inode, name string) inode {
	// Leave out dir's sequence, which may end and begin again under another number.
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", dir.rest(), name)
	return makeInode(splitDir, sequence, h.Sum64()>>24)
}

// SequenceOf returns the sequence number in an inode number.
func SequenceOf(ino uint64) int { return inode(ino).sequence() }
