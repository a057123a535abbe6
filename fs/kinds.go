package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A kindEntry describes the files of one kind.
type kindEntry struct {
	kind   kind
	parent kind // kind of the directory that contains the files; 0 for the root

	// name is the name of the file or, in batch/, the part after the batch number. % stands for the
	// name of an array. Splits, whose names are configured, have an empty name.
	name    string
	content content

	// These are content if it has the type, and otherwise the zero value.
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
	{kind: batchesRaw, parent: splitDir, name: "batches.bin", content: batchContent{selector: everyBatch}},
	{kind: batchesNPY, parent: splitDir, name: "batches.npy", content: batchContent{selector: everyBatch, format: npy}},
	{kind: batchesArrayNPY, parent: splitDir, name: "batches.%.npy", content: batchContent{selector: everyBatch, format: npy, oneArray: true}},
	{kind: sequenceFile, parent: splitDir, name: "sequence.bin", content: batchContent{selector: wholeSequence}, isUnlisted: true},
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
// was opened, so the page cache is not used.
func (k kind) isText() bool { return k.entry().text.render != nil }

// isNumbered reports whether the files are batch/*, batches.*, sequence.bin or tokens.bin, which
// change only when the tokens do.
func (k kind) isNumbered() bool { return k.entry().parent == batchDir || k.spansBatches() }

// spansBatches reports whether the files show more than one batch: batches.*, sequence.bin and
// tokens.bin.
func (k kind) spansBatches() bool {
	s := k.batches().selector
	return s == everyBatch || s == wholeSequence || k == tokensFile
}

type directoryContent struct{}

func (directoryContent) size(*tree, inode, BatchList) int64 { return 0 }

func (directoryContent) read(*tree, readRequest) (fuse.ReadResult, error) { return nil, syscall.EISDIR }

type batchJSONContent struct{}

func (batchJSONContent) size(_ *tree, _ inode, b BatchList) int64 { return b.BatchJSONLen() }

func (batchJSONContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	return t.compute(r, func(p filePart, dst []byte) error { return p.list.ReadBatchJSON(dst, p.batch, p.off) })
}

type tokensContent struct{}

func (tokensContent) size(_ *tree, _ inode, b BatchList) int64 { return b.Spec().TokensFileSize }

func (tokensContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	return t.compute(r, func(p filePart, dst []byte) error { return p.list.ReadTokens(dst, p.off) })
}

// compute replies to a READ with the bytes that fill writes to dst.
func (t *tree) compute(r readRequest, fill func(p filePart, dst []byte) error) (fuse.ReadResult, error) {
	part, err := t.locate(r)
	if err == nil && part.len > 0 {
		err = fill(part, r.buf[:part.len])
	}
	return fuse.ReadResultData(r.buf[:part.len]), err
}
