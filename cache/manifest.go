package cache

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// Options say how an array is stored and fetched.
type Options struct {
	DType         array.DType      // dtype of the numbers, which are little-endian; "" if only the files say it
	Axes          []int            // shape of an element; nil for tokens, or if only the files say it
	Format        string           // format of the files, one of format.Names; "" is format.Auto
	Tensor        string           // the name of the one to serve, of files with several
	Join          bool             // windows may cross from one file into the next
	Access        localfile.Access // how the bytes of a window are fetched
	DropPageCache bool             // give the kernel's page cache back after every read; Map does not
	VocabSize     int64            // tokens are below it; 0: unknown. Elements with axes have none

	// Documents says where documents end: DocumentsIndexed, FilesAreDocuments, or "" for no documents.
	Documents string

	AlignedArray string // the name of this array, which lies beside another; empty for the main one of a source

	// GuessedDType says that DType is a guess: Open then refuses files that look like another one, or like text.
	GuessedDType bool

	Remote *blob.Remote // where objects are read from
	Follow bool         // Check notices after a while that an object was replaced, although nothing is read from the store

	// Open adds each file to Fingerprint, unless that is nil.
	Fingerprint *Fingerprint

	// CheckNoWriters makes Open refuse a file that a process has open for writing: see
	// [blob.CheckNoWriters].
	CheckNoWriters bool

	// Open calls Opened after each file, concurrently, unless it is nil.
	Opened func()

	// Previous are the same files before they changed, or nil. With it, Open refuses a file that is being overwritten.
	Previous *Array
}

// A Manifest describes an array as it was when it was opened. Another process makes the same array of it with Reopen.
// JSON and gob keep every field.
type Manifest struct {
	Files []File // in order
}

// A File is a file of an array as it was when it was opened.
type File struct {
	Path     []byte // not a string: JSON has none that is not UTF-8
	Identity localfile.Identity
	Sample   localfile.Sample // zero in a manifest of an older program
	Format   format.Format
	Index    *Index // where its documents end; nil if Options did not ask, or there is none

	unleased string // file, or its index, whose writers are not known; empty in a manifest
}

// maxParallelOpens is how many files are opened at the same time, because a store takes long to answer.
const maxParallelOpens = 32

// Open checks every file and makes one array of their elements, in the order of paths. The error says what is wrong with which
// file: that it cannot be read, is no regular file, is empty, ends in the middle of an element, is being overwritten, or is no file
// of such elements, as far as the blocks tell that the fingerprint covers.
func Open(paths []string, o Options) (*Array, error) {
	sum := cmp.Or(o.Fingerprint, NewFingerprint(len(paths)))
	var m Manifest
	var unleased string
	for some := range slices.Chunk(paths, maxParallelOpens) {
		files, errs, parts := make([]File, len(some)), make([]error, len(some)), make([]bytes.Buffer, len(some))
		var all sync.WaitGroup
		for i, path := range some {
			var previous *shard
			if at := len(m.Files) + i; o.Previous != nil && at < len(o.Previous.shards) {
				previous = &o.Previous.shards[at]
			}
			all.Go(func() {
				defer func() {
					if p := recover(); p != nil { // a malformed file; nobody else could recover
						errs[i] = fmt.Errorf("opening %s panicked: %v", path, p)
					}
				}()
				files[i], errs[i] = openFormat(path, o, previous, &Fingerprint{sum: &parts[i], blocks: sum.blocks})
				if o.Opened != nil {
					o.Opened()
				}
			})
		}
		all.Wait()
		for i := range some {
			if errs[i] != nil {
				return nil, errs[i]
			}
			sum.sum.Write(parts[i].Bytes())
			unleased = cmp.Or(unleased, files[i].unleased)
		}
		m.Files = append(m.Files, files...)
	}
	a, err := Reopen(m, o)
	if err == nil {
		a.unleased = unleased
	}
	return a, err
}

// openFormat finds where the elements of a file lie and its documents end, and adds it to the fingerprint.
func openFormat(path string, o Options, previous *shard, sum *Fingerprint) (file File, err error) {
	var was, wasIndex blob.Blob
	if previous != nil {
		was = previous.blob
		if previous.index != nil {
			wasIndex = previous.index.blob
		}
	}
	id, content, err := blob.Open(path, was, o.Remote)
	if err != nil {
		return file, err
	}
	besides := []blob.Content{content}
	defer func() {
		for _, c := range besides {
			c.Close()
		}
	}()
	in := &format.Input{Path: path, Size: id.Size, Content: content, Options: format.Options{
		Format: o.Format, DType: o.DType, GuessedDType: o.GuessedDType, Axes: o.Axes, Tensor: o.Tensor, AlignedArray: o.AlignedArray,
	}}
	in.OpenSidecar = func(path string) (*format.Input, error) {
		b, err := openSidecar(path, nil, o.Remote)
		if b == nil {
			return nil, err
		}
		besides = append(besides, b.content)
		return &b.Input, nil
	}
	of, formatErr := in.Format()
	if formatErr != nil && of.Name != format.Headerless { // of such a file what it looks like says more
		return file, formatErr
	}
	tokens := len(of.Axes) == 0 && o.AlignedArray == "" && of.DType.IsInteger()
	seen := format.Inspection{Path: path, Format: of, Guessed: tokens && o.GuessedDType && of.Name == format.Headerless}
	if tokens {
		seen.VocabSize = o.VocabSize
	}
	// A file that opens may still not be readable: a FUSE or network filesystem answers at the first read.
	sample, err := sum.add(path, id.Size, content, seen.Visit)
	if err = cmp.Or(err, seen.Err(), formatErr); err != nil {
		return file, err
	}
	file = File{Path: []byte(path), Identity: id, Sample: sample, Format: of}
	if err := file.checkWriters(path, content, o); err != nil || o.Documents != DocumentsIndexed {
		return file, err
	}
	file.Index, err = openIndex(&file, wasIndex, sum, o)
	return file, err
}

// checkWriters returns an error if Options.CheckNoWriters refuses a file, which is f or its index.
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

type openInput struct {
	format.Input
	id      localfile.Identity
	content blob.Content
}

// openSidecar opens a file that lies beside another one, or returns nil if there is none.
func openSidecar(path string, previous blob.Blob, from *blob.Remote) (*openInput, error) {
	id, content, err := blob.Open(path, previous, from)
	// Where a bucket may not be listed, a store answers so for an object that is not there.
	hidden := blob.IsRemote(path) && errors.Is(err, os.ErrPermission)
	switch {
	case errors.Is(err, os.ErrNotExist), hidden:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &openInput{format.Input{Path: path, Size: id.Size, Content: content}, id, content}, nil
}

// Manifest is what Reopen makes the same array of.
func (a *Array) Manifest() Manifest {
	m := Manifest{make([]File, len(a.shards))}
	for i := range a.shards {
		s := &a.shards[i]
		m.Files[i] = File{Path: []byte(s.blob.Path()), Identity: s.blob.Identity(), Sample: s.blob.Sample(), Format: s.format, Index: s.index.manifest()}
	}
	return m
}

// Reopen makes the array that m describes, without a look at the files. The error says that m has no files, or files that cannot be one
// array.
func Reopen(m Manifest, o Options) (*Array, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	first := m.Files[0].Format
	a := &Array{number: int64(first.DType.Size()), shards: make([]shard, len(m.Files))}
	a.width = a.number * first.Numbers()
	if len(first.Axes) == 0 {
		a.vocab = o.VocabSize
	}
	start, block := int64(0), m.blockOf()
	for i, f := range m.Files {
		file, err := blob.New(f.Path, f.Identity, f.Sample, o.Access, o.DropPageCache, o.Remote)
		if err != nil {
			return nil, err
		}
		x, err := newIndex(f, block, o)
		if err != nil {
			return nil, err
		}
		a.shards[i] = shard{blob: file, format: f.Format, start: start, index: x}
		if i > 0 && o.Join {
			a.extents[0].Len += f.Format.Count
		} else {
			a.extents = append(a.extents, array.Extent{Name: file.Path(), Start: start, Len: f.Format.Count})
		}
		start += f.Format.Count
	}
	for file := range a.Blobs() {
		if b, ok := file.(*blob.StoreBlob); ok && o.Follow {
			a.followed = append(a.followed, b)
		}
	}
	if o.Documents == FilesAreDocuments || m.Files[0].Index != nil {
		a.documents = newDocuments(a)
	}
	return a, nil
}

// check returns an error unless the files can be one array.
func (m Manifest) check() error {
	if len(m.Files) == 0 {
		return errors.New("no token files")
	}
	first := m.Files[0]
	for _, f := range m.Files {
		if err := f.Format.Fits(string(f.Path), f.Identity.Size); err != nil {
			return err
		}
		switch {
		case f.Format.DType != first.Format.DType:
			return fmt.Errorf("%s: its numbers are %s, those of %s are %s; make them one", f.Path, f.Format.DType, first.Path, first.Format.DType)
		case f.Format.Name != first.Format.Name:
			return fmt.Errorf("%s: its format is %s, that of %s is %s; make them one", f.Path, f.Format.Name, first.Path, first.Format.Name)
		case !slices.Equal(f.Format.Axes, first.Format.Axes):
			return fmt.Errorf("%s: its elements have shape %d, those of %s %d; make them one", f.Path, f.Format.Axes, first.Path, first.Format.Axes)
		case (f.Index == nil) != (first.Index == nil):
			with, without := f, first
			if f.Index == nil {
				with, without = first, f
			}
			return fmt.Errorf("nothing says where the documents of %s end, but %s says it of %s; "+indexFix, without.Path, with.Index.Path, with.Path, without.Path)
		}
	}
	return nil
}
