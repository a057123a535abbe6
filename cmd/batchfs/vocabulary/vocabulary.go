// Package vocabulary reads and writes vocab.json, the file beside prepared token files that says which piece of text each
// token stands for.
package vocabulary

import (
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
)

// Vocabulary is the content of a vocab.json.
type Vocabulary struct {
	Kind   string   `json:"kind"`             // Char or Byte
	Size   int      `json:"vocab_size"`       // tokens are below it
	Tokens []string `json:"tokens,omitempty"` // the text of each token; none for bytes, which need not be text
}

// Read reads a vocabulary. It returns nil and no error where there is no regular file, or one of another program: GPT-2's
// vocabulary has the same name.
func Read(path string) (*Vocabulary, error) {
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	v := new(Vocabulary)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	var foreign *json.UnmarshalTypeError
	switch {
	case errors.As(err, &foreign), err == nil && v.Kind != Char && v.Kind != Byte:
		return nil, nil
	case err == nil && v.Size < 1:
		err = fmt.Errorf("vocab_size must be at least 1 (got %d)", v.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make it again with batchfs prepare, move it away, or set vocab_size", path, err)
	}
	return v, nil
}

// Write writes v as Read reads it.
func (v *Vocabulary) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}

// Of returns the one vocabulary that lies beside token files, or nil where none does. The error says that there is another
// vocabulary beside another file, or is one of Read.
func Of(files []string) (v *Vocabulary, err error) {
	var path string           // of v
	read := map[string]bool{} // by directory
	for _, file := range files {
		dir := filepath.Dir(file)
		if read[dir] {
			continue
		}
		read[dir] = true
		other := filepath.Join(dir, FileName)
		switch w, err := Read(other); {
		case err != nil:
			return nil, err
		case v == nil:
			v, path = w, other
		case w != nil && !reflect.DeepEqual(v, w):
			return nil, fmt.Errorf("%s is another vocabulary than %s, so the same token means different things in their files; "+
				"prepare the texts together", other, path)
		}
	}
	return v, nil
}

// Text returns what a token stands for. A token that is not in the vocabulary is shown as U+FFFD and its number.
func (v *Vocabulary) Text(token int) string {
	switch {
	case v.Kind == Byte && uint(token) < 256:
		return string([]byte{byte(token)})
	case uint(token) < uint(len(v.Tokens)):
		return v.Tokens[token]
	}
	return fmt.Sprintf("\ufffd%d", token)
}
