package fs

// An inode number says what a file is, so there is no table of inodes, a lookup costs no memory, and any process that
// serves the mount agrees with the one before it:
//
//	bits 0-7    kind
//	bits 8-23   sequence, from 1 on; 0 for what belongs to the whole mount
//	bits 24-63  batch number, for the files of batch/
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
)

const (
	rootInode   = inode(rootDir)
	noSuchInode = inode(0)
)

func makeInode(k kind, sequence int, batch uint64) inode {
	return inode(batch<<24 | uint64(sequence)<<8 | uint64(k))
}

func (i inode) kind() kind    { return kind(i) }
func (i inode) sequence() int { return int(i >> 8 & (maxSequences - 1)) }
func (i inode) batch() uint64 { return uint64(i >> 24) }

func (k kind) isDir() bool { return k == rootDir || k == splitDir || k == batchDir }

// Two reads of these can differ, so they have no page cache. A live text has no lasting size either.
func (k kind) isNext() bool     { return k == nextRaw || k == nextNPY }
func (k kind) isLiveText() bool { return k == cursorFile || k == statusFile }
