package cache

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"batchfs/cache/array"
)

// Options say how an array is stored and fetched.
type Options struct {
	DType         array.DType // of the numbers, little-endian; "" where only the files say it
	Axes          []int       // of an element; nil for tokens, or where only the files say it
	Format        string      // of the files, one of Formats; "" is AutoFormat
	Tensor        string      // the name of the one to serve, of files with several
	Join          bool        // windows may cross from one file into the next
	Access        Access      // how the bytes of a window are fetched
	DropPageCache bool        // give the kernel's page cache back after every read; Map does not
	VocabSize     int64       // tokens are below it; 0: nobody knows. It is not of elements with axes

	// Documents says where documents end: DocumentsIndexed, FilesAreDocuments, or "" where nobody asks.
	Documents string

	Beside string // the name of this array, which lies beside another; empty for the main one of a source

	// GuessedDType says that DType is a guess: Open then refuses files that look like another one, or like text. Reopen ignores it.
	GuessedDType bool

	Remote Remote // where objects are read from
	Follow bool   // Check notices after a while that an object was replaced, although nothing is read from the store

	// Open adds each file to Fingerprint, unless that is nil. Reopen ignores it.
	Fingerprint *Fingerprint

	// Previous are the same files before they changed, or nil. With it, Open refuses a file that is being overwritten: see
	// openFile. File i is compared with file i of Previous. Reopen ignores it.
	Previous *Array
}

// A Manifest describes an array as it was when it was opened. Another process makes the same array of it with Reopen.
// JSON and gob keep all of it.
type Manifest struct {
	Files []File // in order
}

// A File is a file of an array as it was when it was opened.
type File struct {
	Path     []byte // not a string: JSON has none that is not UTF-8
	Identity Identity
	Sample   Sample // zero in a manifest of an older program
	Format   Format
	Index    *Index // where its documents end; nil if nobody asked for it, or there is none
}

// Open checks every file and makes one array of their elements, in the order of paths. The error says what is wrong with which
// file: that it cannot be read, is no regular file, is empty, ends in the middle of an element, is being overwritten, or is no file
// of such elements, as far as the blocks tell that the fingerprint covers.
func Open(paths []string, o Options) (*Array, error) {
	sum := cmp.Or(o.Fingerprint, NewFingerprint(len(paths)))
	var m Manifest
	var wait error // for a file that is being overwritten
	for i, path := range paths {
		if len(m.Files) > i {
			continue
		}
		if IsRemote(path) {
			some, err := openObjects(paths[i:], o, sum)
			if err != nil {
				return nil, err
			}
			m.Files = append(m.Files, some...)
			continue
		}
		f, err := openFormat(path, o, o.Previous.shard(i), sum, wait == nil)
		if errors.As(err, new(overwrittenError)) {
			wait = cmp.Or(wait, err) // after the others were looked at, or those would be waited for later
		} else if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	if wait != nil {
		return nil, wait
	}
	return Reopen(m, o)
}

// atOnce is how many objects are opened at the same time.
const atOnce = 32

// openObjects opens the objects that a list of paths begins with, or the first of many, at the same time.
func openObjects(paths []string, o Options, sum *Fingerprint) ([]File, error) {
	n := 1
	for n < min(len(paths), atOnce) && IsRemote(paths[n]) {
		n++
	}
	files, errs, parts := make([]File, n), make([]error, n), make([]bytes.Buffer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			files[i], errs[i] = openFormat(paths[i], o, nil, &Fingerprint{sum: &parts[i], blocks: sum.blocks}, true)
		})
	}
	all.Wait()
	for i := range n {
		if errs[i] != nil {
			return nil, errs[i]
		}
		sum.sum.Write(parts[i].Bytes())
	}
	return files, nil
}

// openFormat opens a file. If all is set, it finds where its elements lie and its documents end, and adds it to the fingerprint.
func openFormat(path string, o Options, previous *shard, sum *Fingerprint, all bool) (file File, err error) {
	var was, wasIndex *tracked
	if previous != nil {
		was = &previous.tracked
		if previous.index != nil {
			wasIndex = &previous.index.tracked
		}
	}
	id, content, err := openBlob(path, was, o.Remote)
	if err != nil {
		return file, err
	}
	defer content.Close()
	if !all {
		return file, nil
	}
	in := &input{path: path, size: id.Size, content: content, o: o}
	var besides []*openInput
	defer func() {
		for _, b := range besides {
			b.content.Close()
		}
	}()
	in.beside = func(path string) (*input, error) {
		b, err := openBeside(path, nil, o.Remote)
		if b == nil {
			return nil, err
		}
		besides = append(besides, b)
		return &b.input, nil
	}
	format, formatErr := in.format()
	if formatErr != nil && format.Name != headerlessFormat { // of such a file what it looks like says more
		return file, formatErr
	}
	tokens := len(format.Axes) == 0 && o.Beside == "" && format.DType.IsInteger()
	seen := sight{path: path, format: format, guessed: tokens && o.GuessedDType && format.Name == headerlessFormat}
	if tokens {
		seen.vocab = o.VocabSize
	}
	// A file that opens may still not be readable: a FUSE or network filesystem answers at the first read.
	sample, err := sum.add(path, id.Size, content, seen.look)
	if err = cmp.Or(err, seen.err(), formatErr); err != nil {
		return file, err
	}
	file = File{[]byte(path), id, sample, format, nil}
	if o.Documents == DocumentsIndexed {
		file.Index, err = openIndex(file, wasIndex, sum, o.Remote)
	}
	return file, err
}

// Manifest is what Reopen makes the same array of.
func (a *Array) Manifest() Manifest {
	m := Manifest{make([]File, len(a.shards))}
	for i := range a.shards {
		s := &a.shards[i]
		m.Files[i] = File{[]byte(s.blob.Path()), s.blob.Identity(), s.blob.Sample(), s.format, s.index.manifest()}
	}
	return m
}

// Reopen makes the array that Open made when m was its. It does not look at the files: one that is no longer that of m,
// or is gone, is an error when it is read or checked. The dtype is that of m. The error says that m is of no files, or of
// files that cannot be one array.
func Reopen(m Manifest, o Options) (*Array, error) {
	if len(m.Files) == 0 {
		return nil, errors.New("no token files")
	}
	first := m.Files[0]
	a := &Array{
		dtype: first.Format.DType, axes: first.Format.Axes,
		shards: make([]shard, len(m.Files)),
	}
	if len(a.axes) == 0 {
		a.vocab = o.VocabSize
	}
	var start int64
	indexed := 0
	for i, f := range m.Files {
		path := string(f.Path)
		if err := f.Format.fits(path, f.Identity.Size); err != nil {
			return nil, err
		}
		switch {
		case f.Format.DType != a.dtype:
			return nil, fmt.Errorf("%s: its numbers are %s, those of %s are %s; make them one", path, f.Format.DType, first.Path, a.dtype)
		case f.Format.Name != first.Format.Name:
			return nil, fmt.Errorf("%s: its format is %s, that of %s is %s; make them one",
				path, f.Format.Name, first.Path, first.Format.Name)
		case !slices.Equal(f.Format.Axes, a.axes):
			return nil, fmt.Errorf("%s: its elements have shape %d, those of %s %d; make them one", path, f.Format.Axes, first.Path, a.axes)
		}
		blob, err := newBlob(f.Path, f.Identity, f.Sample, o.Access, o)
		if err != nil {
			return nil, err
		}
		a.shards[i] = shard{tracked: tracked{blob: blob}, format: f.Format, start: start}
		if f.Index != nil {
			if a.shards[i].index, err = newIndex(f, o); err != nil {
				return nil, err
			}
			indexed++
		}
		if i > 0 && o.Join {
			a.runs[0].Len += f.Format.Count
		} else {
			a.runs = append(a.runs, array.Run{Name: blob.Path(), Start: start, Len: f.Format.Count})
		}
		start += f.Format.Count
	}
	if o.Follow {
		for file := range a.all() {
			if remote, ok := file.blob.(*object); ok {
				a.followed = append(a.followed, remote)
			}
		}
	}
	a.number = int64(a.dtype.Size())
	a.width = a.number * first.Format.Numbers()
	if o.Documents == FilesAreDocuments || indexed == len(a.shards) {
		a.documents = newDocuments(a)
	} else if indexed > 0 {
		without := slices.IndexFunc(m.Files, func(f File) bool { return f.Index == nil })
		with := slices.IndexFunc(m.Files, func(f File) bool { return f.Index != nil })
		return nil, fmt.Errorf("nothing says where the documents of %s end, but %s says it of %s; %s",
			m.Files[without].Path, m.Files[with].Index.Path, m.Files[with].Path, fmt.Sprintf(indexFix, m.Files[without].Path))
	}
	return a, nil
}
