// Package vocabulary reads and writes vocab.json, the file beside prepared token files that says what text each token stands for, how
// the files were made, and what they are.
package vocabulary

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
)

// FileName is the name of the file, in the directory of the token files.
const FileName = "vocab.json"

// The kinds of vocabulary.
const (
	Char = "char" // a token is a Unicode code point
	Byte = "byte" // a token is the value of a byte
	BPE  = "bpe"  // a token is a sequence of bytes
)

// Vocabulary is what a vocab.json says about tokens.
type Vocabulary struct {
	Kind       string   `json:"kind"`                  // Char, Byte or BPE
	Size       int      `json:"vocab_size"`            // tokens are below it
	TokenDType string   `json:"token_dtype,omitempty"` // of the files beside it, where they have no header
	EOT        *uint32  `json:"eot,omitempty"`         // the token that separates documents, if one does
	EOTAt      string   `json:"eot_at,omitempty"`      // where it is: end or begin of documents, or none
	Tokens     []string `json:"tokens,omitempty"`      // of Char: the text of each token
	TokenBytes [][]byte `json:"token_bytes,omitempty"` // of BPE: the bytes of each token, which JSON has in base64
}

// Manifest is all that a vocab.json says: how the token files beside it were made, and what they are.
type Manifest struct {
	Tokenizer string           `json:"tokenizer"` // as for batchfs prepare --by
	Format    string           `json:"format"`
	Splits    map[string]Split `json:"splits"`
	Run       string           `json:"run,omitempty"`      // a digest of the options and the texts: those of the same run have the same
	LeftOut   *LeftOut         `json:"left_out,omitempty"` // of the texts
	Vocabulary
}

// LeftOut is documents that are not valid UTF-8.
type LeftOut struct {
	Documents int64  `json:"documents"`
	First     string `json:"first"` // where the first of them is
}

// Split is the token files of a split.
type Split struct {
	Tokens    int64   `json:"tokens"`
	Documents int64   `json:"documents"`
	Shards    []Shard `json:"shards"` // in order
}

// Shard is one token file.
type Shard struct {
	Name      string `json:"name"` // in the directory of the manifest
	Tokens    int64  `json:"tokens"`
	Documents int64  `json:"documents"` // that end there
	SHA256    string `json:"sha256"`    // of the file

	Arrays   []Array `json:"arrays,omitempty"`    // beside it
	MaskOnes int64   `json:"mask_ones,omitempty"` // of a mask among them
}

// An Array has one number for each token of a shard, in a headerless file.
type Array struct {
	Name  string `json:"name"`
	File  string `json:"file"` // in the directory of the manifest
	DType string `json:"dtype"`
}

// Read returns nil and no error where there is no regular file, or one of another program: GPT-2's vocabulary has the same name.
func Read(path string) (*Manifest, error) {
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	m := new(Manifest)
	if err == nil {
		err = json.Unmarshal(raw, m)
	}
	var foreign *json.UnmarshalTypeError
	switch {
	case errors.As(err, &foreign), err == nil && m.Kind != Char && m.Kind != Byte && m.Kind != BPE:
		return nil, nil
	case err == nil && m.Size < 1:
		err = fmt.Errorf("vocab_size must be at least 1 (got %d)", m.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make it again with batchfs prepare, move it away, or set vocab_size", path, err)
	}
	return m, nil
}

// Write writes m as Read reads it.
func (m *Manifest) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(m)
}

// Of returns the one vocabulary beside token files, or nil, and by its path each shard that has arrays. If there are two vocabularies, or
// one cannot be read, the shards are returned with the error.
func Of(files []string) (v *Vocabulary, shards map[string]Shard, err error) {
	var path string           // of v
	read := map[string]bool{} // by directory
	shards = map[string]Shard{}
	for _, file := range files {
		dir := filepath.Dir(file)
		if read[dir] {
			continue
		}
		read[dir] = true
		other := filepath.Join(dir, FileName)
		m, readErr := Read(other)
		if m == nil {
			err = cmp.Or(err, readErr)
			continue
		}
		for _, split := range m.Splits {
			for _, shard := range split.Shards {
				if len(shard.Arrays) > 0 {
					shards[filepath.Join(dir, shard.Name)] = shard
				}
			}
		}
		if v == nil {
			v, path = &m.Vocabulary, other
		} else if !reflect.DeepEqual(v, &m.Vocabulary) {
			err = cmp.Or(err, fmt.Errorf("%s is another vocabulary than %s, so the same token means different things in their files; "+
				"prepare the texts together", other, path))
		}
	}
	if err != nil {
		v = nil
	}
	return v, shards, err
}

// Text returns what a token stands for: U+FFFD and its number for one that is not in the vocabulary.
func (v *Vocabulary) Text(token int) string {
	switch {
	case v.Kind == Byte && uint(token) < 256:
		return string([]byte{byte(token)})
	case uint(token) < uint(len(v.Tokens)):
		return v.Tokens[token]
	case uint(token) < uint(len(v.TokenBytes)):
		return string(v.TokenBytes[token])
	}
	return fmt.Sprintf("\ufffd%d", token)
}
