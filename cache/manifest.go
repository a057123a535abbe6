package cache

import (
	"cmp"
	"errors"
	"fmt"

	"batchfs/cache/array"
)

// Options say how tokens are stored and fetched.
type Options struct {
	DType         array.DType // of the tokens in headerless files: array.Uint16 or array.Uint32, little-endian
	Join          bool        // windows may cross from one file into the next
	Access        Access      // how the bytes of a window are fetched
	DropPageCache bool        // give the kernel's page cache back after every read; Map does not
	AllFiles      int         // how many files are checked together with these, which count; 0: these are all
	VocabSize     int64       // tokens are below it; 0: nobody knows

	// GuessedDType says that DType is a guess: Open then refuses files that look like another one, or like text. Reopen ignores it.
	GuessedDType bool

	// Open adds each file to Fingerprint, unless that is nil. Reopen ignores it.
	Fingerprint *Fingerprint

	// Previous are the same files before they changed, or nil. With it, Open refuses a file that is being overwritten: see
	// openFile. File i is compared with file i of Previous. Reopen ignores it.
	Previous *Tokens
}

// A Manifest describes tokens as they were when they were opened. Another process makes the same tokens of it with Reopen.
// JSON and gob keep all of it.
type Manifest struct {
	Files []File // in order
}

// A File is a token file as it was when it was opened.
type File struct {
	Path     []byte // not a string: JSON has none that is not UTF-8
	Identity Identity
	Sample   Sample // zero in a manifest of an older program
	Format   Format
}

// Open checks every file and makes one array of their tokens, in the order of paths. The error says what is wrong with which
// file: that it cannot be read, is no regular file, is empty, ends in the middle of a token, is being overwritten, or is no file
// of such tokens, as far as the blocks tell that the fingerprint covers.
func Open(paths []string, o Options) (*Tokens, error) {
	sum := cmp.Or(o.Fingerprint, NewFingerprint(len(paths)))
	var m Manifest
	var wait error // for a file that is being overwritten
	for i, path := range paths {
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

// openFormat opens a file. If all is set, it finds where its tokens lie, and adds it to the fingerprint.
func openFormat(path string, o Options, previous *shard, sum *Fingerprint, all bool) (File, error) {
	id, content, err := openBlob(path, previous)
	if err != nil {
		return File{}, err
	}
	defer content.Close()
	if !all {
		return File{}, nil
	}
	seen := sight{path: path, dtype: o.DType, guessed: o.GuessedDType, vocab: o.VocabSize}
	// A file that opens may still not be readable: a FUSE or network filesystem answers at the first read.
	sample, err := sum.add(path, id.Size, content, seen.look)
	if err != nil {
		return File{}, err
	}
	if err := seen.err(); err != nil {
		return File{}, err
	}
	format, err := headerless(path, id.Size, o.DType)
	return File{[]byte(path), id, sample, format}, err
}

// Manifest is what Reopen makes the same tokens of.
func (t *Tokens) Manifest() Manifest {
	m := Manifest{make([]File, len(t.shards))}
	for i := range t.shards {
		s := &t.shards[i]
		m.Files[i] = File{[]byte(s.blob.Path()), s.blob.Identity(), s.blob.Sample(), s.format}
	}
	return m
}

// Reopen makes the tokens that Open made when m was theirs. It does not look at the files: one that is no longer that of m,
// or is gone, is an error when it is read or checked. The dtype is that of m. The error says that m is of no tokens, or of
// files whose tokens cannot be one array.
func Reopen(m Manifest, o Options) (*Tokens, error) {
	if len(m.Files) == 0 {
		return nil, errors.New("no token files")
	}
	t := &Tokens{dtype: m.Files[0].Format.DType, vocab: o.VocabSize, shards: make([]shard, len(m.Files)), many: max(o.AllFiles, len(m.Files)) > fewFiles}
	var start int64
	for i, f := range m.Files {
		path := string(f.Path)
		if err := f.Format.fits(path, f.Identity.Size); err != nil {
			return nil, err
		}
		if f.Format.DType != t.dtype {
			return nil, fmt.Errorf("%s: its tokens are %s, those of %s are %s; make them one", path, f.Format.DType, m.Files[0].Path, t.dtype)
		}
		blob, err := newBlob(f, o.Access, o.DropPageCache)
		if err != nil {
			return nil, err
		}
		t.shards[i] = shard{blob: blob, format: f.Format, start: start}
		if i > 0 && o.Join {
			t.runs[0].Len += f.Format.Count
		} else {
			t.runs = append(t.runs, Run{blob.Path(), start, f.Format.Count})
		}
		start += f.Format.Count
	}
	t.width = int64(t.dtype.Size())
	return t, nil
}
