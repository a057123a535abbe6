// Package vocabulary reads and writes vocab.json, the manifest that batchfs prepare and the Python
// package's writer write next to token files. A [Manifest] describes the files; the [Vocabulary] in
// it gives the text of each token. Neither is safe for concurrent modification.
package vocabulary

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"

	"batchfs/cache/blob"
)

// FileName is the name of the manifest, in the directory of the token files.
const FileName = "vocab.json"

// UnitsDir is the directory, next to token files that tasks of batchfs prepare write, of what they
// record. Until the manifest lists the files, more of them may come.
const UnitsDir = ".units"

// The kinds of vocabulary.
const (
	Char = "char" // each token is a Unicode code point
	Byte = "byte" // each token is the value of a byte
	BPE  = "bpe"  // each token is a sequence of bytes
	IDs  = "ids"  // tokens are only numbers
)

// A Vocabulary is the part of vocab.json that describes tokens.
type Vocabulary struct {
	Kind       string `json:"kind"` // Char, Byte, BPE or IDs
	Size       int    `json:"vocab_size"`
	TokenDType string `json:"token_dtype,omitempty"` // dtype of token files without a header
	// EOT is the end-of-text token, or nil. EOTAt is its position in each document: "end", "begin"
	// or "none".
	EOT   *uint32 `json:"eot,omitempty"`
	EOTAt string  `json:"eot_at,omitempty"`
	// Tokens has the text of each token of a Char vocabulary. TokenBytes has the bytes of each
	// token of a BPE vocabulary, which JSON encodes in base64.
	Tokens     []string `json:"tokens,omitempty"`
	TokenBytes [][]byte `json:"token_bytes,omitempty"`

	Unknown func(token int) `json:"-"` // called by Text for tokens without a text; nil for none
}

// A Manifest is the content of vocab.json, except what only the Python package's writer reads.
type Manifest struct {
	Tokenizer string           `json:"tokenizer"` // value of --by, or a tokenizer's name
	Format    string           `json:"format"`
	Splits    map[string]Split `json:"splits"`
	// Run is a digest of the options and of the names and sizes of the texts. A run with the same
	// digest need not be repeated.
	Run     string   `json:"run,omitempty"`
	LeftOut *LeftOut `json:"left_out,omitempty"` // nil if all documents were valid UTF-8
	Notes   []string `json:"notes,omitempty"`    // other lines that prepare prints about the texts
	Vocabulary
}

// LeftOut counts documents that were left out.
type LeftOut struct {
	Documents int64  `json:"documents"`
	First     string `json:"first"` // location of the first one
}

// A Split lists the token files of a split.
type Split struct {
	Tokens    int64   `json:"tokens"`
	Documents int64   `json:"documents"`
	EOTInside int64   `json:"eot_inside,omitempty"` // end-of-text tokens inside documents
	Shards    []Shard `json:"shards"`               // ordered by name
}

// A Shard is one token file.
type Shard struct {
	Name      string `json:"name"` // file name, in the directory of the manifest
	Tokens    int64  `json:"tokens"`
	Documents int64  `json:"documents"` // documents that end in this shard
	SHA256    string `json:"sha256"`    // hash of the whole file

	Arrays   []ArrayFile `json:"arrays,omitempty"`
	MaskOnes int64       `json:"mask_ones,omitempty"` // tokens whose mask is 1
	IDs      string      `json:"ids,omitempty"`       // file with the ids of documents, or empty
}

// An ArrayFile is a headerless file with one element, of the given shape, for each token of a
// shard.
type ArrayFile struct {
	Name  string `json:"name"`
	File  string `json:"file"` // file name, in the directory of the manifest
	DType string `json:"dtype"`
	Shape []int  `json:"shape,omitempty"`
}

// ArrayFiles returns all aligned arrays in m, which may be nil, by file name.
func (m *Manifest) ArrayFiles() map[string]ArrayFile {
	files := map[string]ArrayFile{}
	if m == nil {
		return files
	}
	for _, split := range m.Splits {
		for _, shard := range split.Shards {
			for _, a := range shard.Arrays {
				files[a.File] = a
			}
		}
	}
	return files
}

// An UnavailableError means that a store did not answer whether it has a vocab.json, or with what
// is in it.
type UnavailableError struct{ error }

func (e UnavailableError) Unwrap() error { return e.error }

// Read reads a vocab.json. It returns nil and no error if path is not a regular file or belongs to
// another program, because GPT-2's vocabulary has the same name. For an object, whose remote must
// not be nil, it may return an UnavailableError.
func Read(path string, remote *blob.Remote) (*Manifest, error) {
	isRemote := blob.IsRemote(path)
	if info, err := os.Stat(path); !isRemote && (errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular()) {
		return nil, nil
	}
	raw, err := blob.ReadFile(path, remote)
	switch {
	case !isRemote || err == nil:
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fs.ErrPermission): // S3 says that about missing objects if one may not list
		remote.Note(path, "counts as absent, because the store does not allow reading it", err)
		return nil, nil
	default:
		return nil, UnavailableError{err}
	}
	m := new(Manifest)
	if err == nil {
		err = json.Unmarshal(raw, m)
	}
	var foreign *json.UnmarshalTypeError
	switch {
	case errors.As(err, &foreign), err == nil && !slices.Contains([]string{Char, Byte, BPE, IDs}, m.Kind):
		return nil, nil
	case err == nil && m.Size < 1:
		err = fmt.Errorf("vocab_size must be at least 1 (got %d)", m.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; run batchfs prepare again, move the file away, or set vocab_size", path, err)
	}
	return m, nil
}

// Write writes m in the format of vocab.json.
func (m *Manifest) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(m)
}

// ForFiles returns the vocabulary next to token files, or nil, and all shards of their splits, by
// path. If vocabularies differ, or one cannot be read, it returns an error together with the
// shards, but an UnavailableError alone. remote may be nil if no file is an object.
func ForFiles(files []string, remote *blob.Remote) (v *Vocabulary, shards map[string]Shard, err error) {
	var path string           // the vocab.json that v is from
	read := map[string]bool{} // keyed by path
	shards = map[string]Shard{}
	for _, file := range files {
		other := blob.Sibling(file, FileName)
		if read[other] {
			continue
		}
		read[other] = true
		m, readErr := Read(other, remote)
		if errors.As(readErr, new(UnavailableError)) {
			return nil, nil, readErr
		}
		if m == nil {
			err = cmp.Or(err, readErr)
			continue
		}
		for _, split := range m.Splits {
			path := func(s Shard) string { return blob.Sibling(other, s.Name) }
			if !slices.ContainsFunc(split.Shards, func(s Shard) bool { return slices.Contains(files, path(s)) }) {
				continue
			}
			for _, shard := range split.Shards {
				shards[path(shard)] = shard
			}
		}
		if v == nil {
			v, path = &m.Vocabulary, other
		} else if !reflect.DeepEqual(v, &m.Vocabulary) {
			err = cmp.Or(err, fmt.Errorf("%s differs from %s, so the same token means different things in their files; "+
				"prepare the texts together", other, path))
		}
	}
	if err != nil {
		v = nil
	}
	return v, shards, err
}

// Text returns the text that a token stands for, or U+FFFD and the number of a token that is not in
// the vocabulary. Tokens that are only numbers are separated by spaces.
func (v *Vocabulary) Text(token int) string {
	switch {
	case v.Kind == Byte && uint(token) < 256:
		return string([]byte{byte(token)})
	case uint(token) < uint(len(v.Tokens)):
		return v.Tokens[token]
	case uint(token) < uint(len(v.TokenBytes)) && len(v.TokenBytes[token]) > 0:
		return string(v.TokenBytes[token])
	case v.Kind == IDs:
		return fmt.Sprintf("%d ", token)
	case v.Unknown != nil:
		v.Unknown(token)
	}
	return fmt.Sprintf("\ufffd%d", token)
}
