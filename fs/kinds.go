package fs

import (
	"bytes"
	_ "embed"
	"strings"
	"syscall"
	"text/template"

	"batchfs/fs/header"
)

type entry struct {
	kind    kind
	in      kind    // the directories that hold it; 0: the root directory itself
	name    string  // in such a directory, in batch/ what follows the number, with % for the name of an array; "" for a split
	content content // and with it, how it is cached
}

// A content is what files of a kind show. s is a file's sequence, or nil for a file of the whole mount.
type content interface {
	size(t *tree, i inode, s Sequence) int64
}

// table has the kinds in the order in which directories list them.
var table = []entry{
	{kind: rootDir, content: directory{}},
	{kind: readmeFile, in: rootDir, name: "README", content: text{show: func(t *tree, _ inode, _ <-chan struct{}) []byte { return t.readme }}},
	{kind: statusFile, in: rootDir, name: "status.json", content: text{show: (*tree).status}},
	{kind: metricsFile, in: rootDir, name: "metrics", content: text{show: (*tree).metrics}},
	{kind: splitDir, in: rootDir, content: directory{}},

	{kind: nextRaw, in: splitDir, name: "next", content: batches{which: nextBatch}},
	{kind: nextNPY, in: splitDir, name: "next.npy", content: batches{which: nextBatch, format: npy}},
	{kind: nextSafe, in: splitDir, name: "next.safetensors", content: batches{which: nextBatch, format: safetensors}},
	{kind: cursorFile, in: splitDir, name: "cursor", content: text{show: (*tree).cursor}},
	{kind: batchDir, in: splitDir, name: "batch", content: directory{}},
	{kind: batchRaw, in: batchDir, name: "", content: batches{which: oneBatch}},
	{kind: batchNPY, in: batchDir, name: ".npy", content: batches{which: oneBatch, format: npy}},
	{kind: batchSafe, in: batchDir, name: ".safetensors", content: batches{which: oneBatch, format: safetensors}},
	{kind: batchArrayNPY, in: batchDir, name: ".%.npy", content: batches{which: oneBatch, format: npy, oneArray: true}},
	{kind: batchJSON, in: batchDir, name: ".json", content: origins{}},
	{kind: batchesRaw, in: splitDir, name: "batches.bin", content: batches{which: everyBatch}},
	{kind: batchesNPY, in: splitDir, name: "batches.npy", content: batches{which: everyBatch, format: npy}},
	{kind: batchesArrayNPY, in: splitDir, name: "batches.%.npy", content: batches{which: everyBatch, format: npy, oneArray: true}},
	{kind: tokensFile, in: splitDir, name: "tokens.bin", content: tokens{}},
	{kind: infoFile, in: splitDir, name: "info.json", content: text{show: (*tree).info, len: (*tree).infoLen}},
}

// byKind has the entry of each kind, and an empty one for numbers that are none.
var byKind = func() (all [maxKinds]entry) {
	for _, e := range table {
		all[e.kind] = e
	}
	return all
}()

func (k kind) entry() *entry { return &byKind[k] }

// batches returns what files of the kind show of batches, or the zero value.
func (k kind) batches() batches {
	b, _ := k.entry().content.(batches)
	return b
}

func (k kind) isDir() bool { return k.entry().content == directory{} }
func (k kind) mode() uint32 {
	if k.isDir() {
		return syscall.S_IFDIR
	}
	return syscall.S_IFREG
}

func (k kind) isNext() bool       { return k.batches().which == nextBatch }
func (k kind) isOfOneArray() bool { return k.batches().oneArray }

// isLiveText reports whether the files show a text of the moment in which they are opened, which is never cached.
func (k kind) isLiveText() bool {
	_, is := k.entry().content.(text)
	return is && k != readmeFile
}

// isNumbered reports whether the files change only with the tokens: batch/*, batches.* and tokens.bin.
func (k kind) isNumbered() bool { return k.entry().in == batchDir || k.isLong() }

// isLong reports whether the files are numbered and show more than one batch.
func (k kind) isLong() bool { return k.batches().which == everyBatch || k == tokensFile }

type directory struct{}

func (directory) size(*tree, inode, Sequence) int64 { return 0 }

type batches struct {
	which    which
	format   header.Format
	oneArray bool // the array whose index the inode has; else the main ones, or all in a .safetensors file
}

type which uint8

const (
	nextBatch  which = iota + 1 // the one that its handle holds
	oneBatch                    // the one whose number is the file's name
	everyBatch                  // batches 0 to Steps-1
)

const (
	raw         = header.FormatRaw
	npy         = header.FormatNPY
	safetensors = header.FormatSafetensors

	headerBytes = header.Bytes
)

func (b batches) frame(i inode, s Sequence) header.Frame {
	f := header.Frame{Format: b.format, Batch: &s.Spec().Batch, Array: header.AllArrays}
	if b.oneArray {
		f.Array = i.array()
	}
	if b.which == everyBatch {
		f.Batches = s.Spec().Steps
	}
	return f
}

func (b batches) size(_ *tree, i inode, s Sequence) int64 { return b.frame(i, s).Size() }

// shown returns which bytes of each batch a file shows: size of them from byte from on.
func (b batches) shown(i inode, s Sequence) (from, size int64) { return b.frame(i, s).Shown() }

func (b batches) header(i inode, s Sequence, k uint64) []byte {
	return b.frame(i, s).Header(k, s.Spec().Metadata)
}

// A computed content is read from a Sequence at any byte.
type computed interface {
	content
	read(i inode, s Sequence, dst []byte, off int64) error
}

// An elementReader reads what the files other than batches show.
type elementReader interface {
	// ReadTokens fills dst with bytes of tokens.bin, starting at byte off. They lie within
	// Spec.TokensLen.
	ReadTokens(dst []byte, off int64) error

	// ReadOrigin fills dst with bytes of batch/<k>.json, starting at byte off. They lie within
	// OriginLen, which is the same for every k.
	ReadOrigin(dst []byte, k uint64, off int64) error
	OriginLen() int64
}

type origins struct{}

func (origins) size(_ *tree, _ inode, s Sequence) int64 { return s.OriginLen() }

func (origins) read(i inode, s Sequence, dst []byte, off int64) error {
	return s.ReadOrigin(dst, i.firstBatch(), off)
}

type tokens struct{}

func (tokens) size(_ *tree, _ inode, s Sequence) int64 { return s.Spec().TokensLen }

func (tokens) read(_ inode, s Sequence, dst []byte, off int64) error { return s.ReadTokens(dst, off) }

func (i inode) firstBatch() uint64 {
	switch {
	case i.kind().isLong():
		return 0
	case i.kind().isOfOneArray():
		return i.rest() & (1<<arrayShift - 1)
	}
	return i.rest()
}

func (i inode) ofVersion(v Version) inode {
	switch {
	case !i.kind().isLong():
		return i&^0xe0 | inode(v%8<<5)
	case i.kind().isOfOneArray():
		return makeArrayInode(i.kind(), i.sequence(), i.array(), uint64(v))
	}
	return makeInode(i.kind(), i.sequence(), uint64(v))
}

// outdated reports whether i is a numbered file of other tokens than s has, or of an array that s lacks.
func (i inode) outdated(s Sequence) bool {
	return i.kind().isNumbered() && i != i.ofVersion(s.Spec().Version) || i.kind().isOfOneArray() && i.array() >= len(s.Spec().Batch.Arrays)
}

//go:embed readme.tmpl
var readmeText string

var readme = template.Must(template.New("README").Funcs(template.FuncMap{"dims": header.Dims, "names": mainNames, "beside": beside}).Parse(readmeText))

// readmeOf is the file README of a mount.
func readmeOf(mountpoint string, splits []Sequence) []byte {
	var b bytes.Buffer
	if err := readme.Execute(&b, map[string]any{"Mountpoint": mountpoint, "Splits": splits}); err != nil {
		panic(err) // the template does not suit the data
	}
	return b.Bytes()
}

func mainNames(s Sequence) string {
	var names []string
	for _, a := range s.Spec().Batch.Arrays[:s.Spec().Batch.Main] {
		names = append(names, a.Name)
	}
	return strings.Join(names, ", ")
}
