package cache

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
	"batchfs/internal/printable"
)

// Options describe an array and say how to read it.
type Options struct {
	DType     array.DType // dtype of the little-endian numbers; "" if only the files say it
	Axes      []int       // shape of an element; nil for tokens, or if only the files say it
	VocabSize int64       // upper bound of tokens, exclusive; 0 if unknown; ignored with axes
	BOS       *uint64     // token with which each file must begin; nil: any; ignored with axes
	Format    string      // one of format.Names; "" means format.Auto
	Tensor    string      // tensor to serve, if files have several
	Join      bool        // whether windows may cross from one file into the next

	Reading localfile.Options

	// Documents says where documents end: DocumentsIndexed, FilesAreDocuments, or "" for no
	// documents.
	Documents string

	AlignedArray string // name of an array aligned with the main one; empty for the main array

	// Matched maps each file that only globs match to its size in bytes: see [array.Extent].
	Matched map[string]int64

	// GuessedDType means that DType is only a guess. Open then rejects files that look like text or
	// like another dtype.
	GuessedDType bool

	Remote *blob.Remote // opens objects in a store
	Follow bool         // whether RevalidateNext checks the objects

	// Fingerprint, if not nil, is the hash to which Open adds each file.
	Fingerprint *Fingerprint

	// CheckNoWriters makes Open reject files that are open for writing: see [blob.CheckNoWriters].
	CheckNoWriters bool

	// Opened, if not nil, is called after each attempt to open a file. Calls may be concurrent.
	Opened func()

	// Previous, if not nil, is the array that Open returned before files changed. If one of its
	// files is being overwritten, Open then returns an error.
	Previous *Array
}

// A Manifest describes an array as it was when opened. Reopen recreates the array from it, in any
// process. JSON and gob preserve every field.
type Manifest struct {
	Files []File
}

// A File describes a file of an array as it was when opened.
type File struct {
	Path     []byte          // not a string, because JSON would replace bytes that are not UTF-8
	Identity localfile.Stamp // the field name is part of snapshots
	Sample   localfile.Sample
	Format   format.Format
	Index    *Index // nil if not requested, or missing
	Matched  bool   // whether only globs match the path

	// unleased is the path of the file or its index if its writers could not be determined. It is
	// not part of a manifest.
	unleased string
}

// maxParallelOpens limits how many files are opened, or cache blocks fetched, at the same time. One
// after the other would be slow, because a store takes long to answer.
const maxParallelOpens = 32

// Open opens files as one array, in the order of paths. It returns an error if a file cannot be
// read, is not a regular file, is empty, ends in the middle of an element, is being overwritten or,
// judging by a sample, does not hold such elements.
func Open(paths []string, o Options) (*Array, error) {
	m := Manifest{make([]File, len(paths))}
	previous := map[string]*shard{}
	if o.Previous != nil {
		for i := range o.Previous.shards {
			s := &o.Previous.shards[i]
			previous[s.blob.Path()] = s
		}
	}
	err := cmp.Or(o.Fingerprint, NewFingerprint(len(paths))).addAll(len(paths), func(i int, part *Fingerprint) (err error) {
		defer func() {
			// A malformed file must not end the process.
			if p := recover(); p != nil {
				err = fmt.Errorf("opening %s panicked: %v", paths[i], p)
			}
		}()
		m.Files[i], err = openFile(paths[i], o, previous[paths[i]], part)
		if o.Opened != nil {
			o.Opened()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	a, err := Reopen(m, o)
	if err == nil {
		for _, f := range m.Files {
			a.unleased = cmp.Or(a.unleased, f.unleased)
		}
	}
	return a, err
}

// AddTo adds the files to a fingerprint, as Open did, without opening them as an array again. It
// returns a [localfile.ChangedError] if a file is no longer the one that was opened.
func (a *Array) AddTo(sum *Fingerprint) error {
	files := slices.Collect(a.Blobs())
	return sum.addAll(len(files), func(i int, part *Fingerprint) error {
		_, err := part.add(files[i].Path(), files[i].Stamp().Size, files[i].ReadSample, func(int64, []byte) {})
		return err
	})
}

// openFile finds the elements and the documents of a file, and adds the file to the fingerprint.
func openFile(path string, o Options, previous *shard, sum *Fingerprint) (file File, err error) {
	var oldFile, oldIndex blob.Blob
	if previous != nil {
		oldFile = previous.blob
		if previous.index != nil {
			oldIndex = previous.index.blob
		}
	}
	in, err := openInput(path, oldFile, o)
	if err != nil {
		return file, explainMissing(path, err)
	}
	defer in.close()
	found, formatErr := in.Format()
	// For a headerless file, the inspection below gives a better error.
	if formatErr != nil && found.Name != format.Headerless {
		return file, formatErr
	}
	tokens := len(found.Axes) == 0 && o.AlignedArray == "" && found.DType.IsInteger()
	inspection := format.Inspection{Path: path, Format: found, Guessed: tokens && o.GuessedDType && found.Name == format.Headerless}
	if tokens {
		inspection.VocabSize = o.VocabSize
	}
	if found.Name == format.Headerless && o.Format != format.Headerless {
		inspection.Size = in.Size
	}
	// A file that opens may be unreadable: FUSE and network file systems may report an error only
	// at the first read.
	sample, err := sum.add(path, in.Size, in.readSample, inspection.Visit)
	if err = cmp.Or(err, inspection.Err(), formatErr); err == nil && tokens && o.BOS != nil {
		err = in.CheckBOS(found, *o.BOS)
	}
	if err != nil {
		return file, err
	}
	_, matched := o.Matched[path]
	file = File{Path: []byte(path), Identity: in.stamp, Sample: sample, Format: found, Matched: matched}
	if err := file.checkWriters(path, in.content, o); err != nil || o.Documents != DocumentsIndexed {
		return file, err
	}
	file.Index, err = openIndex(&file, oldIndex, sum, o)
	return file, err
}

// checkWriters returns an error if the file is open for writing and Options.CheckNoWriters is set.
// path names f or its index.
func (f *File) checkWriters(path string, content blob.Content, o Options) error {
	if !o.CheckNoWriters {
		return nil
	}
	known, err := blob.CheckNoWriters(content)
	if !known {
		f.unleased = path
	}
	return err
}

// A fileInput is an open file, with the neighbors that its format has opened.
type fileInput struct {
	format.Input
	stamp     localfile.Stamp
	content   blob.Content
	neighbors []*fileInput
}

// openInput opens a file. For previous, see [blob.Open].
func openInput(path string, previous blob.Blob, o Options) (*fileInput, error) {
	stamp, content, err := blob.Open(path, previous, o.Remote)
	if err != nil {
		return nil, err
	}
	in := &fileInput{stamp: stamp, content: content}
	in.Input = format.Input{Path: path, Size: stamp.Size, Content: content, Options: format.Options{
		Format: o.Format, DType: o.DType, GuessedDType: o.GuessedDType, Axes: o.Axes, Tensor: o.Tensor, AlignedArray: o.AlignedArray,
	}}
	in.OpenSidecar = func(path string) (*format.Input, error) {
		neighbor, err := openNeighbor(path, nil, o)
		if neighbor == nil {
			return nil, err
		}
		in.neighbors = append(in.neighbors, neighbor)
		return &neighbor.Input, nil
	}
	return in, nil
}

func (in *fileInput) readSample(blocks int64, visit func(off int64, block []byte)) (localfile.Sample, error) {
	return localfile.NewSample(in.content, in.Size, blocks, visit)
}

func (in *fileInput) close() {
	in.content.Close()
	for _, neighbor := range in.neighbors {
		neighbor.close()
	}
}

// explainMissing adds to the error about a file that does not exist what its path tells: that it is
// a link, or how to name what was meant.
func explainMissing(path string, err error) error {
	if !errors.Is(err, os.ErrNotExist) || blob.IsRemote(path) {
		return err
	}
	_, statErr := os.Stat(path + ".bin")
	target, linkErr := os.Readlink(path)
	switch {
	case linkErr == nil:
		return fmt.Errorf("%w; it is a symbolic link to %s: restore that file", err, target)
	case statErr == nil: // Megatron-LM's options name a file without its suffix
		return fmt.Errorf("%w; name the token file: %s.bin", err, path)
	case strings.Contains(path, ":/"): // in an absolute path, a URL has one slash
		return fmt.Errorf("%w; URLs must begin with s3:// or gs://: download other files first", err)
	case strings.Contains(path, ","):
		return fmt.Errorf(`%w; write a list of files as ["a.bin", "b.bin"]`, err)
	}
	return err
}

// openNeighbor opens a file next to another one, or returns nil if there is none.
func openNeighbor(path string, previous blob.Blob, o Options) (*fileInput, error) {
	in, err := openInput(path, previous, o)
	// If a bucket may not be listed, a store reports missing objects as forbidden.
	hidden := blob.IsRemote(path) && errors.Is(err, os.ErrPermission)
	switch {
	case errors.Is(err, os.ErrNotExist), hidden:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return in, nil
}

// maxEmpty is the size in bytes of the largest file that WithoutEmpty opens. It is small because
// Open opens the same files again, and suffices for a header without elements.
const maxEmpty = 4096

// WithoutEmpty returns paths without the files of Options.Matched that have no elements. If none is
// left, it returns all paths, and Open reports the first one.
func WithoutEmpty(paths []string, o Options) []string {
	empty := make([]bool, len(paths))
	permits := make(chan struct{}, maxParallelOpens)
	var all sync.WaitGroup
	for i, path := range paths {
		if size, ok := o.Matched[path]; ok && size <= maxEmpty {
			permits <- struct{}{}
			all.Go(func() {
				defer func() { <-permits }()
				empty[i] = isEmpty(path, o)
			})
		}
	}
	all.Wait()
	var left []string
	for i, path := range paths {
		if !empty[i] {
			left = append(left, path)
		}
	}
	if left == nil {
		return paths
	}
	return left
}

func isEmpty(path string, o Options) bool {
	defer func() { recover() }() // opening the file will report the panic
	in, err := openInput(path, nil, o)
	if err != nil {
		return false
	}
	defer in.close()
	_, err = in.Format()
	empty := format.EmptyError("")
	return errors.As(err, &empty)
}

// Manifest returns a description from which Reopen recreates the array.
func (a *Array) Manifest() Manifest {
	m := Manifest{make([]File, len(a.shards))}
	for i := range a.shards {
		s := &a.shards[i]
		m.Files[i] = File{Path: []byte(s.blob.Path()), Identity: s.blob.Stamp(), Sample: s.blob.Sample(), Format: s.format,
			Index: s.index.manifestIndex(), Matched: s.matched}
	}
	return m
}

// Reopen recreates the array that m describes, without accessing the files. The error says why the
// files cannot form one array.
func Reopen(m Manifest, o Options) (*Array, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	first := m.Files[0].Format
	a := &Array{numberBytes: int64(first.DType.Size()), shards: make([]shard, len(m.Files))}
	a.elementBytes = a.numberBytes * first.Numbers()
	if len(first.Axes) == 0 {
		a.vocabSize = o.VocabSize
	}
	start, block := int64(0), m.searchBlock()
	for i, f := range m.Files {
		file, err := blob.New(f.Path, f.Identity, f.Sample, o.Reading, o.Remote)
		if err != nil {
			return nil, err
		}
		x, err := newDocumentIndex(f, block, o)
		if err != nil {
			return nil, err
		}
		a.shards[i] = shard{blob: file, format: f.Format, matched: f.Matched, start: start, index: x}
		if i > 0 && o.Join {
			a.extents[0].Len += f.Format.Count
		} else {
			a.extents = append(a.extents, array.Extent{Name: file.Path(), Start: start, Len: f.Format.Count, Matched: f.Matched})
		}
		start += f.Format.Count
	}
	for file := range a.Blobs() {
		if b, ok := file.(*blob.StoreBlob); ok && o.Follow {
			a.revalidated = append(a.revalidated, b)
		}
	}
	if o.Documents == FilesAreDocuments || m.Files[0].Index != nil {
		a.documents = newDocuments(a)
	}
	return a, nil
}

func (m Manifest) check() error {
	if len(m.Files) == 0 {
		return errors.New("no token files")
	}
	first := m.Files[0]
	for _, f := range m.Files {
		if err := f.Format.CheckFits(string(f.Path), f.Identity.Size); err != nil {
			return err
		}
		switch {
		case f.Format.DType != first.Format.DType:
			return fmt.Errorf("%s: its numbers are %s, those of %s are %s; convert one of them",
				f.Path, f.Format.DType, first.Path, first.Format.DType)
		case f.Format.Name != first.Format.Name:
			return fmt.Errorf("%s: its format is %s, that of %s is %s; convert one of them", f.Path, f.Format.Name, first.Path, first.Format.Name)
		case !slices.Equal(f.Format.Axes, first.Format.Axes):
			return fmt.Errorf("%s: its elements have shape %d, those of %s have %d; convert one of them",
				f.Path, f.Format.Axes, first.Path, first.Format.Axes)
		case (f.Index == nil) != (first.Index == nil):
			with, without := f, first
			if f.Index == nil {
				with, without = first, f
			}
			return fmt.Errorf("nothing says where the documents of %s end, but %s does for %s; "+indexFix,
				without.Path, with.Index.Path, with.Path, printable.ShellArg(string(without.Path)))
		}
	}
	return nil
}
