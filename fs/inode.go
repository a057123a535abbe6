package fs

import (
	"encoding/binary"
	"hash/fnv"
)

// An inode number says what a file is, so there is no table of inodes, a lookup costs no memory, and any process that
// serves the mount agrees with the one before it:
//
//	bits 0-4    kind
//	bits 5-7    how often the tokens had changed, modulo 8, for the files of batch/: their page cache goes with the old
//	            tokens
//	bits 8-23   sequence, from 1 on; 0 for what belongs to the whole mount
//	bits 24-63  batch number, for the files of batch/; how often the tokens had changed, for batches.*, which stay open
//	            for long; for a directory that settings were looked up as, and for the batch/ in it, which name that was:
//	            a directory can only be in one place
type inode uint64

const (
	maxSequences = 1 << 16
	MaxBatches   = 1 << 40 // numbers of batches are below it
)

// A kind is what a file shows. Its number is part of inode numbers that a running kernel knows: never renumber.
type kind uint8

const (
	rootDir    kind = 1 // with all else 0 this is FUSE's root, inode 1
	readmeFile kind = 2
	statusFile kind = 3
	splitDir   kind = 8
	batchDir   kind = 9
	nextRaw    kind = 10
	nextNPY    kind = 11
	cursorFile kind = 12
	infoFile   kind = 13
	batchRaw   kind = 14
	batchNPY   kind = 15
	batchesRaw kind = 16
	batchesNPY kind = 17
	nextSafe   kind = 18
	batchSafe  kind = 19
	batchJSON  kind = 20
)

const (
	rootInode   = inode(rootDir)
	noSuchInode = inode(0)
)

func makeInode(k kind, sequence int, batch uint64) inode {
	return inode(batch<<24 | uint64(sequence)<<8 | uint64(k))
}

// changed is the numbered file i of tokens that have changed so often.
func (i inode) changed(changes uint64) inode {
	if i.kind().isBatches() {
		return makeInode(i.kind(), i.sequence(), changes)
	}
	return i&^0xe0 | inode(changes%8<<5)
}

func (i inode) kind() kind    { return kind(i & 0x1f) }
func (i inode) sequence() int { return int(i >> 8 & (maxSequences - 1)) }
func (i inode) batch() uint64 { return uint64(i >> 24) }

// first is the number of the first batch in a numbered file.
func (i inode) first() uint64 {
	if i.kind().isBatches() {
		return 0
	}
	return i.batch()
}

// as is the directory of a sequence under a name of a directory.
func as(sequence int, dir inode, name string) inode {
	h := fnv.New64a()
	binary.Write(h, binary.LittleEndian, uint64(dir))
	h.Write([]byte(name))
	return makeInode(splitDir, sequence, h.Sum64()>>24)
}

func (k kind) isDir() bool { return k == rootDir || k == splitDir || k == batchDir }

// Two reads of these can differ, so they have no page cache. A live text has no lasting size either.
func (k kind) isNext() bool     { return k == nextRaw || k == nextNPY || k == nextSafe }
func (k kind) isLiveText() bool { return k == cursorFile || k == statusFile || k == infoFile }

// A raw file is batches and nothing else; of the others of batches each has a header.
func (k kind) isRaw() bool { return k == nextRaw || k == batchRaw || k == batchesRaw }

func (k kind) isBatches() bool { return k == batchesRaw || k == batchesNPY }

// Numbered files never change while the tokens do not.
func (k kind) isNumbered() bool {
	return k >= batchRaw && k <= batchesNPY || k == batchSafe || k == batchJSON
}
