package fs

import (
	"fmt"
	"strings"

	"batchfs/cache/array"
	"batchfs/fs/header"
)

// A content is what a file shows, and what of it may be cached.
type content uint8

const (
	directory   content = iota + 1 // 0 is that of no kind
	fixedText                      // a text that never changes
	liveText                       // a text of the moment in which it is opened: never cached
	nextBatch                      // the batch that its handle holds: never cached, because all handles share the page cache
	oneBatch                       // the batch whose number is the file's name
	everyBatch                     // batches 0 to Steps-1
	batchOrigin                    // where the rows of the batch come from whose number is the file's name
	everyToken                     // the tokens of all files, or what else they hold
)

// A selection says which arrays of a batch a file shows.
type selection uint8

const (
	mainArrays selection = iota
	allArrays
	namedArray // whose index the inode has
)

// A row says all that is special about a kind of files.
type row struct {
	kind    kind
	in      kind    // the directories that hold it; 0: the root directory itself
	name    string  // in such a directory; "" for a split, whose name is its own; in batch/, what follows the number; of a file of one array, with % for its name
	content content // and with it, how it is cached

	header func(s Sequence, i inode, k uint64) []byte // what stands before the batches, headerBytes long; nil: nothing
	shows  selection
	text   func(t *texts, i inode) ([]byte, Sequence) // makes a text; the Sequence is that whose info.json it is, or nil
	len    func(t *texts, i inode) int64              // of a text, where it need not be made for that
	about  string                                     // for the mount's README: what it is
}

// headerBytes is how long every header is.
const headerBytes = header.Bytes

// npyHeader stands before one batch.
func npyHeader(s Sequence, _ inode, _ uint64) []byte {
	main := s.Spec().Batch.Stack()
	return header.NPY(main.DType, main.Shape...)
}

// batchesNPYHeader stands before all batches.
func batchesNPYHeader(s Sequence, _ inode, _ uint64) []byte {
	main := s.Spec().Batch.Stack()
	return header.NPY(main.DType, append([]int{int(s.Spec().Steps)}, main.Shape...)...)
}

// arrayHeader stands before one array of one batch.
func arrayHeader(s Sequence, i inode, _ uint64) []byte {
	a := s.Spec().Batch.Arrays[i.array()]
	return header.NPY(a.DType, a.Shape...)
}

// batchesArrayHeader stands before one array of all batches.
func batchesArrayHeader(s Sequence, i inode, _ uint64) []byte {
	a := s.Spec().Batch.Arrays[i.array()]
	return header.NPY(a.DType, append([]int{int(s.Spec().Steps)}, a.Shape...)...)
}

// safetensorsHeader stands before batch k in a .safetensors file.
func safetensorsHeader(s Sequence, _ inode, k uint64) []byte {
	return header.Safetensors(s.Spec().Batch, s.Spec().Metadata, k)
}

// rows are the kinds in the order in which directories list them.
var rows = []row{
	{kind: rootDir, content: directory},
	{kind: readmeFile, in: rootDir, name: "README", content: fixedText, text: readmeText},
	{kind: statusFile, in: rootDir, name: "status.json", content: liveText, text: statusText},
	{kind: splitDir, in: rootDir, content: directory},

	{kind: nextRaw, in: splitDir, name: "next", content: nextBatch,
		about: `a fresh batch, one per open. Raw little-endian numbers, in the shape given below.
Its number is taken at the first read. Keep the file open and read it from offset 0
again, after its end, for the next one.`},
	{kind: nextNPY, in: splitDir, name: "next.npy", content: nextBatch, header: npyHeader,
		about: "the same as a NumPy file; takes numbers from the same cursor"},
	{kind: nextSafe, in: splitDir, name: "next.safetensors", content: nextBatch, header: safetensorsHeader, shows: allArrays,
		about: "the same as named tensors; takes numbers from the same cursor"},
	{kind: cursorFile, in: splitDir, name: "cursor", content: liveText, text: cursorText,
		about: "the number that next takes next; batchfs seek sets it"},
	{kind: batchDir, in: splitDir, name: "batch", content: directory},
	{kind: batchRaw, in: batchDir, name: "", content: oneBatch,
		about: "batch number k: any k from 0 on; not listed by ls"},
	{kind: batchNPY, in: batchDir, name: ".npy", content: oneBatch, header: npyHeader,
		about: "the same as a NumPy file"},
	{kind: batchSafe, in: batchDir, name: ".safetensors", content: oneBatch, header: safetensorsHeader, shows: allArrays,
		about: "the same as named tensors"},
	{kind: batchArrayNPY, in: batchDir, name: ".%.npy", content: oneBatch, header: arrayHeader, shows: namedArray,
		about: "one of the arrays that it has beside the main ones"},
	{kind: batchJSON, in: batchDir, name: ".json", content: batchOrigin,
		about: "where each of its rows comes from"},
	{kind: batchesRaw, in: splitDir, name: "batches.bin", content: everyBatch,
		about: "batches 0 to steps-1 back to back, to be read in order or mapped"},
	{kind: batchesNPY, in: splitDir, name: "batches.npy", content: everyBatch, header: batchesNPYHeader,
		about: "the same as one array"},
	{kind: batchesArrayNPY, in: splitDir, name: "batches.%.npy", content: everyBatch, header: batchesArrayHeader, shows: namedArray,
		about: "the arrays of that name of all these batches"},
	{kind: tokensFile, in: splitDir, name: "tokens.bin", content: everyToken,
		about: "the split's tokens, of all its files, without headers"},
	{kind: infoFile, in: splitDir, name: "info.json", content: liveText, text: infoText, len: infoLen,
		about: "all that decides what the batches hold"},
}

// byKind has the row of each kind, and an empty one for numbers that are none.
var byKind = func() (table [maxKinds]row) {
	for _, r := range rows {
		table[r.kind] = r
	}
	return table
}()

func (k kind) row() *row { return &byKind[k] }

func (k kind) isDir() bool  { return k.row().content == directory }
func (k kind) isNext() bool { return k.row().content == nextBatch }

func (k kind) isLiveText() bool { return k.row().content == liveText }

// isNumbered tells the files that never change while the tokens do not: those of batch/, batches.* and tokens.bin.
func (k kind) isNumbered() bool { return k.row().in == batchDir || k.isLong() }

// isLong tells the numbered files that are not of one batch.
func (k kind) isLong() bool { return k.row().content == everyBatch || k.row().content == everyToken }

// firstBatch is the number of the first batch in a numbered file.
func (i inode) firstBatch() uint64 {
	switch {
	case i.kind().isLong():
		return 0
	case i.kind().row().shows == namedArray:
		return i.rest() & (1<<arrayShift - 1)
	}
	return i.rest()
}

// batches is what Sequence.Now takes for a numbered file: its batch, or array.AllBatches.
func (i inode) batches() uint64 {
	if i.kind().isLong() {
		return array.AllBatches
	}
	return i.firstBatch()
}

// ofVersion returns the inode of the numbered file i at version v of the tokens.
func (i inode) ofVersion(v Version) inode {
	switch {
	case !i.kind().isLong():
		return i.withSmallVersion(v)
	case i.kind().row().shows == namedArray:
		return makeArrayInode(i.kind(), i.sequence(), i.array(), uint64(v))
	}
	return makeInode(i.kind(), i.sequence(), uint64(v))
}

// outdated says whether i is a numbered file of tokens that are not those of s, or of an array that s does not have.
func (i inode) outdated(s Sequence) bool {
	return i.kind().isNumbered() && i != i.ofVersion(s.Spec().Version) || i.kind().row().shows == namedArray && i.array() >= len(s.Spec().Batch.Arrays)
}

// shown is which bytes of each batch a file shows: size of them from byte from on.
func (i inode) shown(s Sequence) (from, size int64) {
	switch i.kind().row().shows {
	case allArrays:
		return 0, s.Spec().Batch.Bytes()
	case namedArray:
		a := &s.Spec().Batch.Arrays[i.array()]
		return a.Offset, a.Bytes()
	}
	return 0, s.Spec().Batch.MainBytes()
}

// size is the size of a file that shows batches, where they come from, or tokens, in bytes.
func (i inode) size(s Sequence) int64 {
	r := i.kind().row()
	switch {
	case isUnsuited(s):
		return 1 << 50 // so that no read lies beyond the end
	case r.content == batchOrigin:
		return s.OriginLen()
	case r.content == everyToken:
		return s.Spec().TokensLen
	}
	_, size := i.shown(s)
	if r.content == everyBatch {
		size *= int64(s.Spec().Steps)
	}
	if r.header != nil {
		size += headerBytes
	}
	return size
}

// readmeOf is the file README of a mount.
func readmeOf(mountpoint string, splits []Sequence) []byte {
	var b strings.Builder
	b.WriteString(`This is batchfs: training batches as files, read-only.

Every batch has a number, and batch k of a split never changes. The files of each split:

`)
	for _, r := range rows {
		name := r.name
		if r.in == batchDir {
			name = "batch/<k>" + r.name
		}
		name = strings.Replace(name, "%", "<array>", 1)
		if r.about == "" {
			continue
		}
		const column = 24
		fmt.Fprintf(&b, "  %-*s%s\n", column-2, name, strings.ReplaceAll(r.about, "\n", "\n"+strings.Repeat(" ", column)))
	}
	b.WriteString(`
A directory KEY=VALUE,... of a split, not listed by ls, is the split under other settings, with a
cursor of its own: next in rank=3,world=8 is for the fourth of eight ranks.

`)
	for _, s := range splits {
		main := s.Spec().Batch.Stack()
		var names, beside []string
		for _, a := range s.Spec().Batch.Arrays[:s.Spec().Batch.Main] {
			names = append(names, a.Name)
		}
		for _, a := range s.Spec().Batch.Arrays[s.Spec().Batch.Main:] {
			beside = append(beside, fmt.Sprintf("%s of shape (%s), %s", a.Name, header.Dims(a.Shape), a.DType))
		}
		path := mountpoint + "/" + s.Spec().Name
		fmt.Fprintf(&b, "%s: batches of shape (%s), %s, %d bytes\n", path, header.Dims(main.Shape), main.DType, main.Bytes())
		fmt.Fprintf(&b, "  %s = numpy.load(%q)\n\n", strings.Join(names, ", "), path+"/next.npy")
		if len(beside) > 0 {
			fmt.Fprintf(&b, "  In next.safetensors, and each as batch/<k>.<array>.npy: %s\n\n", strings.Join(beside, "; "))
		}
	}
	b.WriteString("status.json has counters and the last error of each split.\n")
	return []byte(b.String())
}
