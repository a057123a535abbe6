package fs

import (
	"fmt"
	"hash/fnv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

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

// A kindEntry describes the files of one kind.
type kindEntry struct {
	kind   kind
	parent kind // kind of the directory that contains the files; 0 for the root

	// name is the name of the file or, in batch/, the part after the batch number. % stands for the
	// name of an array. Splits, whose names are configured, have an empty name.
	name    string
	content content

	// In byKind, each of these is a copy of content if content has its type.
	batches batchContent
	text    textContent

	// isUnlisted is set for files that are too large to copy or search.
	isUnlisted bool
}

// A content is what the files of a kind show.
type content interface {
	// size returns the size of file i in bytes. b has its batches, and is nil if it has none.
	size(t *tree, i inode, b BatchList) int64

	// read returns the bytes of a READ. The reply may alias its buffer.
	read(t *tree, r readRequest) (fuse.ReadResult, error)
}

// kindTable lists the kinds in the order in which directories list their files.
var kindTable = []kindEntry{
	{kind: rootDir, content: directoryContent{}},
	{kind: readmeFile, parent: rootDir, name: "README", content: textContent{render: (*tree).readme}},
	{kind: statusFile, parent: rootDir, name: "status.json", content: textContent{render: (*tree).status}},
	{kind: metricsFile, parent: rootDir, name: "metrics", content: textContent{render: (*tree).metrics}},
	{kind: splitDir, parent: rootDir, content: directoryContent{}},

	{kind: nextRaw, parent: splitDir, name: "next", content: batchContent{selector: nextBatch}},
	{kind: nextNPY, parent: splitDir, name: "next.npy", content: batchContent{selector: nextBatch, format: npy}},
	{kind: nextSafe, parent: splitDir, name: "next.safetensors", content: batchContent{selector: nextBatch, format: safetensors}},
	{kind: cursorFile, parent: splitDir, name: "cursor", content: textContent{render: (*tree).cursor}},
	{kind: batchDir, parent: splitDir, name: "batch", content: directoryContent{}},
	{kind: batchRaw, parent: batchDir, name: "", content: batchContent{selector: oneBatch}},
	{kind: batchNPY, parent: batchDir, name: ".npy", content: batchContent{selector: oneBatch, format: npy}},
	{kind: batchSafe, parent: batchDir, name: ".safetensors", content: batchContent{selector: oneBatch, format: safetensors}},
	{kind: batchArrayNPY, parent: batchDir, name: ".%.npy", content: batchContent{selector: oneBatch, format: npy, oneArray: true}},
	{kind: batchJSON, parent: batchDir, name: ".json", content: batchJSONContent{}},
	{kind: batchesRaw, parent: splitDir, name: "batches.bin", content: batchContent{selector: firstSteps}},
	{kind: batchesNPY, parent: splitDir, name: "batches.npy", content: batchContent{selector: firstSteps, format: npy}},
	{kind: batchesArrayNPY, parent: splitDir, name: "batches.%.npy", content: batchContent{selector: firstSteps, format: npy, oneArray: true}},
	{kind: sequenceFile, parent: splitDir, name: "sequence.bin", content: batchContent{selector: countInInode}, isUnlisted: true},
	{kind: tokensFile, parent: splitDir, name: "tokens.bin", content: tokensContent{}},
	{kind: infoFile, parent: splitDir, name: "info.json", content: textContent{render: (*tree).info, length: BatchList.InfoLen}},
}

// byKind is kindTable indexed by kind. Unused numbers have empty entries.
var byKind = func() (all [maxKinds]kindEntry) {
	for _, e := range kindTable {
		e.batches, _ = e.content.(batchContent)
		e.text, _ = e.content.(textContent)
		all[e.kind] = e
	}
	for i := range all {
		if all[i].content == nil {
			all[i].content = unknownContent{}
		}
	}
	return all
}()

func (k kind) entry() *kindEntry { return &byKind[k] }

// batches returns the content of the files, or the zero value if the files show no batches.
func (k kind) batches() batchContent { return k.entry().batches }

func (k kind) isDir() bool { return k == rootDir || k == splitDir || k == batchDir }

func (k kind) mode() uint32 {
	if k.isDir() {
		return syscall.S_IFDIR
	}
	return syscall.S_IFREG
}

func (k kind) isNext() bool        { return k.batches().selector == nextBatch }
func (k kind) showsOneArray() bool { return k.batches().oneArray }

// isText reports whether the files are texts. Each handle shows the text as it was when the handle
// was opened or, if that is no longer known, when it is read from the beginning. So the page cache
// is not used.
func (k kind) isText() bool { return k.entry().text.render != nil }

// isNumbered reports whether the files are batch/*, batches.*, sequence.bin or tokens.bin, which
// change only when the tokens do, or with what a restart can change: names of sources, and
// batches of a mixture that nobody has read.
func (k kind) isNumbered() bool { return k.entry().parent == batchDir || k.spansBatches() }

// spansBatches reports whether the files show more than one batch: batches.*, sequence.bin and
// tokens.bin.
func (k kind) spansBatches() bool {
	s := k.batches().selector
	return s == firstSteps || s == countInInode || k == tokensFile
}

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
		return i&^0xe0 | inode(v%8<<5) // the version is in bits 5-7
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

// sequenceInode returns the inode of sequence.bin with the batches of b.
func sequenceInode(sequence int, b BatchList) inode {
	return makeInode(sequenceFile, sequence, b.Spec().MaxSteps-1).withVersion(b.Spec().Version)
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

// An unknownContent is that of a kind that only a later version of the program has, of which a
// reader has a file open when a restart goes back to this version.
type unknownContent struct{}

func (unknownContent) size(*tree, inode, BatchList) int64 { return 0 }

func (unknownContent) read(*tree, readRequest) (fuse.ReadResult, error) { return nil, errForgotten }

type directoryContent struct{}

func (directoryContent) size(*tree, inode, BatchList) int64 { return 0 }

func (directoryContent) read(*tree, readRequest) (fuse.ReadResult, error) { return nil, syscall.EISDIR }
