package fs

import (
	"fmt"
	"hash/fnv"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// An inode number says what a file is, so there is no table of inodes, a lookup costs no memory,
// and any process that serves the mount agrees with the one before it:
//
//	bits 0-4    kind
//	bits 5-7    files in batch/: version of the tokens, modulo 8, so that the page cache of the old
//	            tokens goes with the old inode; other files: 0
//	bits 8-23   sequence, starting at 1; 0 for files and directories of the whole mount
//	bits 24-63  files in batch/: batch number
//	            batches.* and tokens.bin, which stay open for long: version of the tokens
//	            files of a single array: the same with 4 bits less; the top 4 bits are the index of
//	            the array in a batch
//	            settings directories and their batch/: hash of the path below the split, because the
//	            kernel allows a directory only one parent
type inode uint64

// MaxBatches bounds the numbers of batches: they are below it.
const MaxBatches = array.MaxBatches

// A kind says what a file shows; kinds.go has an entry for each. Its number is part of inode numbers that a running kernel
// knows: never renumber.
type kind uint8

const (
	rootDir     kind = 1 // with all else 0 this is FUSE's root, inode 1
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

// rest is the bits 24-63: the batch number, for the files of batch/ that are not of one array.
func (i inode) rest() uint64 { return uint64(i >> 24) }

// arrayShift is where in the rest of a file of one array its index among the arrays of a batch begins.
const arrayShift = 36

func makeArrayInode(k kind, sequence, array int, rest uint64) inode {
	return makeInode(k, sequence, uint64(array)<<arrayShift|rest)
}

func (i inode) array() int { return int(i.rest() >> arrayShift) }

// settingsDir returns the inode number of the settings directory name in dir. Its hash leaves out
// the sequence of dir, because that sequence may end and begin again under another number.
func settingsDir(sequence int, dir inode, name string) inode {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", dir.rest(), name)
	return makeInode(splitDir, sequence, h.Sum64()>>24)
}

// SequenceOf returns the number of the sequence whose file cursor has inode number ino.
func SequenceOf(ino uint64) int { return inode(ino).sequence() }
