package fs

import (
	"bytes"
	_ "embed"
	"strings"
	"syscall"
	"text/template"

	"batchfs/fs/header"
)

type kindEntry struct {
	kind    kind
	in      kind    // the directories that hold it; 0: the root directory itself
	name    string  // in such a directory, in batch/ what follows the number, with % for the name of an array; "" for a split
	content content // and with it, how it is cached
}

// A content is what files of a kind show. s is a file's sequence, or nil for a file of the whole mount.
type content interface {
	size(t *tree, i inode, s Batches) int64
}

// kindTable has the kinds in the order in which directories list them.
var kindTable = []kindEntry{
	{kind: rootDir, content: directory{}},
	{kind: readmeFile, in: rootDir, name: "README", content: text{show: func(t *tree, _ inode, _ <-chan struct{}) []byte { return t.readme }}},
	{kind: statusFile, in: rootDir, name: "status.json", content: text{show: (*tree).status}},
	{kind: metricsFile, in: rootDir, name: "metrics", content: text{show: (*tree).metrics}},
	{kind: splitDir, in: rootDir, content: directory{}},

	{kind: nextRaw, in: splitDir, name: "next", content: batchContent{selector: nextBatch}},
	{kind: nextNPY, in: splitDir, name: "next.npy", content: batchContent{selector: nextBatch, format: npy}},
	{kind: nextSafe, in: splitDir, name: "next.safetensors", content: batchContent{selector: nextBatch, format: safetensors}},
	{kind: cursorFile, in: splitDir, name: "cursor", content: text{show: (*tree).cursor}},
	{kind: batchDir, in: splitDir, name: "batch", content: directory{}},
	{kind: batchRaw, in: batchDir, name: "", content: batchContent{selector: oneBatch}},
	{kind: batchNPY, in: batchDir, name: ".npy", content: batchContent{selector: oneBatch, format: npy}},
	{kind: batchSafe, in: batchDir, name: ".safetensors", content: batchContent{selector: oneBatch, format: safetensors}},
	{kind: batchArrayNPY, in: batchDir, name: ".%.npy", content: batchContent{selector: oneBatch, format: npy, oneArray: true}},
	{kind: batchJSON, in: batchDir, name: ".json", content: origins{}},
	{kind: batchesRaw, in: splitDir, name: "batches.bin", content: batchContent{selector: everyBatch}},
	{kind: batchesNPY, in: splitDir, name: "batches.npy", content: batchContent{selector: everyBatch, format: npy}},
	{kind: batchesArrayNPY, in: splitDir, name: "batches.%.npy", content: batchContent{selector: everyBatch, format: npy, oneArray: true}},
	{kind: tokensFile, in: splitDir, name: "tokens.bin", content: tokens{}},
	{kind: infoFile, in: splitDir, name: "info.json", content: text{show: (*tree).info, len: (*tree).infoLen}},
}

// byKind has the entry of each kind, and an empty one for numbers that are none.
var byKind = func() (all [maxKinds]kindEntry) {
	for _, e := range kindTable {
		all[e.kind] = e
	}
	return all
}()

func (k kind) entry() *kindEntry { return &byKind[k] }

// batches returns what files of the kind show of batches, or the zero value.
func (k kind) batches() batchContent {
	b, _ := k.entry().content.(batchContent)
	return b
}

func (k kind) isDir() bool { return k.entry().content == directory{} }
func (k kind) mode() uint32 {
	if k.isDir() {
		return syscall.S_IFDIR
	}
	return syscall.S_IFREG
}

func (k kind) isNext() bool       { return k.batches().selector == nextBatch }
func (k kind) isOfOneArray() bool { return k.batches().oneArray }

// isLiveText reports whether the files show a text of the moment in which they are opened, which is never cached.
func (k kind) isLiveText() bool {
	_, is := k.entry().content.(text)
	return is && k != readmeFile
}

// isNumbered reports whether the files change only with the tokens: batch/*, batches.* and tokens.bin.
func (k kind) isNumbered() bool { return k.entry().in == batchDir || k.spansBatches() }

// spansBatches reports whether the files are numbered and show more than one batch.
func (k kind) spansBatches() bool { return k.batches().selector == everyBatch || k == tokensFile }

type directory struct{}

func (directory) size(*tree, inode, Batches) int64 { return 0 }

type batchContent struct {
	selector batchSelector
	format   header.Format
	oneArray bool // the array whose index the inode has; else the main ones, or all in a .safetensors file
}

type batchSelector uint8

const (
	nextBatch  batchSelector = iota + 1 // the one that its handle holds
	oneBatch                            // the one whose number is the file's name
	everyBatch                          // batches 0 to Steps-1
)

const (
	raw         = header.FormatRaw
	npy         = header.FormatNPY
	safetensors = header.FormatSafetensors

	headerBytes = header.Bytes
)

func (b batchContent) frame(i inode, s Batches) header.Frame {
	f := header.Frame{Format: b.format, Batch: &s.Spec().Batch, Array: header.AllArrays}
	if b.oneArray {
		f.Array = i.array()
	}
	if b.selector == everyBatch {
		f.Batches = s.Spec().Steps
	}
	return f
}

func (b batchContent) size(_ *tree, i inode, s Batches) int64 { return b.frame(i, s).Size() }

// byteRange returns which bytes of each batch a file shows: size of them from byte from on.
func (b batchContent) byteRange(i inode, s Batches) (from, size int64) {
	return b.frame(i, s).ByteRange()
}

func (b batchContent) header(i inode, s Batches, k uint64) []byte {
	return b.frame(i, s).Header(k, s.Spec().Metadata)
}

// A computed content is read from a Batches at any byte.
type computed interface {
	content
	read(i inode, s Batches, dst []byte, off int64) error
}

type origins struct{}

func (origins) size(_ *tree, _ inode, s Batches) int64 { return s.OriginLen() }

func (origins) read(i inode, s Batches, dst []byte, off int64) error {
	return s.ReadOrigin(dst, i.firstBatch(), off)
}

type tokens struct{}

func (tokens) size(_ *tree, _ inode, s Batches) int64 { return s.Spec().TokensLen }

func (tokens) read(_ inode, s Batches, dst []byte, off int64) error { return s.ReadTokens(dst, off) }

func (i inode) firstBatch() uint64 {
	switch {
	case i.kind().spansBatches():
		return 0
	case i.kind().isOfOneArray():
		return i.rest() & (1<<arrayShift - 1)
	}
	return i.rest()
}

func (i inode) ofVersion(v Version) inode {
	switch {
	case !i.kind().spansBatches():
		return i&^0xe0 | inode(v%8<<5)
	case i.kind().isOfOneArray():
		return makeArrayInode(i.kind(), i.sequence(), i.array(), uint64(v))
	}
	return makeInode(i.kind(), i.sequence(), uint64(v))
}

// outdated reports whether i is a numbered file of other tokens than s has, or of an array that s lacks.
func (i inode) outdated(s Batches) bool {
	return i.kind().isNumbered() && i != i.ofVersion(s.Spec().Version) || i.kind().isOfOneArray() && i.array() >= len(s.Spec().Batch.Arrays)
}

//go:embed readme.tmpl
var readmeText string

var readme = template.Must(template.New("README").Funcs(template.FuncMap{"dims": header.Dims, "names": mainNames, "rawArrays": rawArrays}).Parse(readmeText))

// readmeOf is the file README of a mount.
func readmeOf(mountpoint string, splits []Batches) []byte {
	var b bytes.Buffer
	if err := readme.Execute(&b, map[string]any{"Mountpoint": mountpoint, "Splits": splits}); err != nil {
		panic(err) // the template does not suit the data
	}
	return b.Bytes()
}

func mainNames(s Batches) string {
	var names []string
	for _, a := range s.Spec().Batch.Arrays[:s.Spec().Batch.Main] {
		names = append(names, a.Name)
	}
	return strings.Join(names, ", ")
}
