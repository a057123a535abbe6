package prepare

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// encodeLines encodes the documents of a piece that is JSON: of its lines, or of its only row.
func (w *encodeWorker) encodeLines(ch *chunk, piece *textPiece) error {
	for at, line := range piece.jsonLines() {
		if err := w.encodeLine(ch, piece.in, at, line); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

// jsonLines yields each line of a piece that is not blank, as JSON: NaN and the infinities are
// replaced by 0. If the piece is a row of another format, the only line is the JSON of that row.
func (p *textPiece) jsonLines() iter.Seq2[place, jsontext.Value] {
	return func(yield func(place, jsontext.Value) bool) {
		if p.in.format != jsonlFormat {
			yield(place{"row", p.start.Offset + 1}, p.text)
			return
		}
		at := place{"line", p.start.Line}
		for line := range bytes.Lines(p.text) {
			at.number++
			line = bytes.TrimPrefix(line, byteOrderMark) // concatenated files have one each
			if len(bytes.TrimSpace(line)) > 0 && !yield(at, replaceNaN(line)) {
				return
			}
		}
	}
}

// encodeLine encodes the document of a line of JSON.
func (w *encodeWorker) encodeLine(ch *chunk, in *input, at place, line jsontext.Value) error {
	if !utf8.Valid(line) {
		switch {
		case w.encoding.replaceInvalid:
			line = replaceInvalid(line)
			ch.notes.Replaced.add(at.of(in))
		case w.encoding.skipInvalid:
			addLeftOut(&ch.notes.NotUTF8, 1, at.of(in))
			return nil
		default:
			return fmt.Errorf("not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip", firstInvalid(line))
		}
	}
	ch.notes.Lines++
	encode := w.encodeLineTexts
	if w.encoding.ids {
		encode = w.encodeIDs
	}
	var err error
	if w.encoding.id != nil {
		w.id, err = w.encoding.documentID(line)
	}
	if err == nil {
		err = encode(ch, in, at, line)
	}
	if unusable, ok := errors.AsType[unusableError](err); ok {
		if w.encoding.skipInvalid {
			ch.notes.addUnusable(unusable.kind, at.of(in))
			return nil
		}
		return fmt.Errorf("%w; to leave such %ss out, use --invalid skip", err, at.kind)
	}
	return err
}

func (w *encodeWorker) encodeLineTexts(ch *chunk, in *input, at place, line jsontext.Value) error {
	texts, counted, err := w.lineTexts(line)
	if err != nil {
		return err
	}
	ch.notes.add(counted)
	return w.encodeDocument(ch, in, at, texts)
}

// replaceNaN replaces NaN, Infinity and -Infinity, which Python's json writes, with numbers of the
// same length, because they are not JSON.
func replaceNaN(line []byte) []byte {
	if !bytes.Contains(line, []byte("NaN")) && !bytes.Contains(line, []byte("Infinity")) {
		return line
	}
	line = bytes.Clone(line)
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			for i++; i < len(line) && line[i] != '"'; i++ {
				if line[i] == '\\' {
					i++
				}
			}
		case 'N', 'I':
			for _, name := range []string{"NaN", "Infinity"} {
				before, after := line[:i], line[i:]
				if name == "Infinity" {
					before = bytes.TrimSuffix(before, []byte("-"))
				}
				rest, ok := bytes.CutPrefix(after, []byte(name))
				if ok && endsWithAny(before, ":,[ \t") && (len(rest) == 0 || bytes.IndexByte([]byte(",]} \t\r\n"), rest[0]) >= 0) {
					copy(after, "0         "[:len(name)])
				}
			}
		}
	}
	return line
}

func endsWithAny(text []byte, bytesBefore string) bool {
	return len(text) > 0 && bytes.IndexByte([]byte(bytesBefore), text[len(text)-1]) >= 0
}
