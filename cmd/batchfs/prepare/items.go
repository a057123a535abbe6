package prepare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/vocabulary"
)

// ItemOptions says how [OpenItems] reads a file.
type ItemOptions struct {
	// These are the options of prepare with the same names. By may be empty, which stands for the
	// tokenizer in Manifest.
	By, As, Field string
	// Manifest describes the tokens among which the items are searched for. It is nil if there is
	// none.
	Manifest *vocabulary.Manifest
}

// Items are the texts of a file, such as the questions of a benchmark. Like prepare, but with each
// line of a text as an item of its own, it reads lines, lines of JSON and rows. It belongs to one
// goroutine.
type Items struct{ plan *plan }

// An Item is a text with its tokens.
type Item struct {
	Unit   string // "line" or "row"
	Number int64  // of the line or row, from 1
	Text   []byte // without the space around it; valid during a call
	// Encodings has the tokens of the text by itself, and then those after each of itemPrefixes, if
	// they differ.
	Encodings [][]uint32
}

// itemPrefixes are what may precede a copy of a text and change its first tokens: most tokenizers
// make one word of a space or a punctuation mark and the letters after it.
var itemPrefixes = []string{" ", "\n", `"`, "("}

// OpenItems prepares to read a file, or standard input if its name is -. It returns an error if the
// tokenizer is unknown or is not that of the manifest.
func OpenItems(file string, o ItemOptions, stdin io.Reader) (*Items, error) {
	t, err := o.openTokenizer()
	if err != nil {
		return nil, err
	}
	s := settings{By: o.By, As: input.Format(o.As), Field: o.Field, Invalid: "replace", EOT: "none", Format: "headerless"}
	if err := s.resolve(); err != nil {
		return nil, err
	}
	inputs, _, err := input.Find([]string{file}, nil, s.As, stdin, nil)
	if err != nil {
		return nil, err
	}
	if len(inputs) != 1 {
		return nil, fmt.Errorf("%s: must be one file (got %d)", file, len(inputs))
	}
	e := encoding{fields: []field.Field{field.New(s.Field, 0)}, replaceInvalid: true}
	e.fields[0].Options = "--field"
	p := &plan{settings: s, inputs: inputs, encoding: e.withTokenizer(t, s.EOT)}
	return &Items{p}, p.checkInputs()
}

func (o ItemOptions) openTokenizer() (tokenizer, error) {
	by, m := o.By, o.Manifest
	if by == "" && m != nil {
		if by = m.Tokenizer; m.Kind == vocabulary.Char || m.Kind == vocabulary.Byte {
			by = m.Kind
		}
	}
	switch {
	case by == "":
		return nil, errors.New("--by: name the tokenizer of the tokens, because no vocab.json is next to them")
	case by == vocabulary.Char && m != nil && m.Kind == vocabulary.Char:
		return newCharTokenizer(m.Tokens), nil
	case by == vocabulary.Char:
		return nil, errors.New("--by char: the tokens have no vocab.json that lists characters; name the tokenizer that made them")
	case o.By == "" && tokenizers[by] == nil:
		return nil, fmt.Errorf("--by: name the tokenizer of the tokens, a tokenizer.json or tekken.json, because vocab.json only says that it is %q", by)
	}
	t, err := (&settings{By: by}).openTokenizer(nil)
	if err == nil && m != nil && !isTokenizerOf(t, &m.Vocabulary) {
		err = fmt.Errorf("--by %s: did not make the tokens, because their vocab.json is of %q; name that tokenizer, or leave --by out", by, m.Tokenizer)
	}
	return t, err
}

// isTokenizerOf reports whether the tokens of v have the same texts in t, as far as v knows them.
func isTokenizerOf(t tokenizer, v *vocabulary.Vocabulary) bool {
	switch {
	case v.Kind == vocabulary.IDs:
		return true
	case v.Kind != vocabulary.BPE:
		return t.Name() == v.Kind
	case t.Size() < int64(len(v.TokenBytes)):
		return false
	}
	for token, text := range v.TokenBytes {
		if !bytes.Equal(text, t.Bytes(uint32(token))) {
			return false
		}
	}
	return true
}

// VocabSize returns the size of the vocabulary. Tokens are smaller than that, except the token for
// a character that is not in a vocabulary of characters.
func (s *Items) VocabSize() int64 { return s.plan.encoding.tokenizer.Size() }

// Read calls visit with each item, in order, until it returns an error or ctx ends.
func (s *Items) Read(ctx context.Context, visit func(Item) error) error {
	w := newEncodeWorker(s.plan)
	visitTexts := func(at place, texts []field.Text) error {
		if ctx.Err() != nil {
			return command.ErrInterrupted
		}
		return visit(w.itemOf(at, texts))
	}
	r := newReader(s.plan, "", func(ch *chunk) error {
		defer ch.recycle()
		for i := range ch.pieces {
			if err := w.visitItems(&ch.pieces[i], visitTexts); err != nil {
				return err
			}
		}
		return nil
	})
	r.textsByLine = true
	return r.read(position{})
}

// visitItems calls visit with the texts of each item in a piece: of lines of JSON, of a row, or of
// the lines of a text that are not blank.
func (w *encodeWorker) visitItems(piece *textPiece, visit func(at place, texts []field.Text) error) error {
	visitText := func(at place, text []byte) error {
		valid, _ := w.encoding.toValidUTF8(text)
		return visit(at, []field.Text{{Bytes: valid}})
	}
	switch format := piece.in.Format; {
	case w.encoding.isJSON(format):
		for at, line := range piece.jsonLines() {
			valid, _ := w.encoding.toValidUTF8(line)
			texts, _, err := w.finder.Texts(replaceNaN(valid))
			if err != nil {
				return fmt.Errorf("%s: %s: %w", piece.in.Name(), at, err)
			}
			if err := visit(at, texts); err != nil {
				return err
			}
		}
	case format.HasRows():
		return visitText(place{"row", piece.start.Offset + 1}, piece.text)
	default:
		at := place{"line", piece.start.Line}
		for line := range bytes.Lines(piece.text) {
			at.number++
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			if err := visitText(at, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// itemOf returns the item of a document.
func (w *encodeWorker) itemOf(at place, texts []field.Text) Item {
	var all []byte
	for _, t := range texts {
		all = append(all, t.Bytes...)
	}
	item := Item{Unit: at.kind, Number: at.number, Text: bytes.TrimSpace(all)}
	item.Encodings = [][]uint32{w.encoder.Append(nil, item.Text)}
	for _, prefix := range itemPrefixes {
		tokens := w.encoder.Append(nil, append([]byte(prefix), item.Text...))
		if !slices.ContainsFunc(item.Encodings, func(e []uint32) bool { return slices.Equal(e, tokens) }) {
			item.Encodings = append(item.Encodings, tokens)
		}
	}
	return item
}
