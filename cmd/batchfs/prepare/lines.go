package prepare

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// readLines reads JSON lines. It only cuts them, because decoding takes long.
func (r *reader) readLines(s *stream, pos position) error {
	if leftOut, err := r.begin(s, &pos); leftOut || err != nil {
		return err
	}
	lastLineEnd := func(text []byte) int { return bytes.LastIndexByte(text, '\n') + 1 }
	for {
		n, err := r.fillToCut(s, lastLineEnd)
		switch {
		case err != nil || n == 0 && r.ended:
			return err
		case n == 0 && r.skipInvalid:
			if err := r.leaveOutLine(s, &pos); err != nil {
				return err
			}
			continue
		case n == 0:
			return fmt.Errorf("line %d has more than %d bytes, which is the limit: shorten it, or leave such lines out with --invalid skip", pos.Line+1, maxLine)
		}
		piece := textPiece{text: r.buf[:n], in: s.in, start: pos}
		pos.Offset += int64(n)
		pos.Line += int64(bytes.Count(piece.text, []byte("\n")))
		if r.ended {
			return r.add(piece, position{Input: pos.Input + 1})
		}
		if err := r.add(piece, pos); err != nil {
			return err
		}
		r.drop(n)
	}
}

// leaveOutLine leaves out a line that is longer than the buffer.
func (r *reader) leaveOutLine(s *stream, pos *position) error {
	pos.Line++
	r.current.notes.addUnusable(tooLong, location("line", pos.Line, s.in))
	for ended := false; !ended; {
		if err := r.fill(s, chunkSize); err != nil {
			return err
		}
		n := bytes.IndexByte(r.buf, '\n') + 1
		ended = n > 0 || r.ended
		if n == 0 {
			n = len(r.buf)
		}
		pos.Offset += int64(n)
		r.drop(n)
	}
	return nil
}

// An unusableError says why a line has no text.
type unusableError struct {
	kind string // the same for all lines with this fault, to count them
	error
}

func unusable(kind, details string) unusableError {
	return unusableError{kind, errors.New(kind + details)}
}

const (
	tooLong   = "too long"
	notObject = "not a JSON object"
)

// Unusable lines may be at most this fraction of all lines, once there are minLines.
const (
	maxUnusable = 0.1
	minLines    = 10_000
)

func (w *encodeWorker) encodeLines(ch *chunk, piece *textPiece) error {
	number := piece.start.Line
	for line := range bytes.Lines(piece.text) {
		number++
		line = bytes.TrimPrefix(line, byteOrderMark) // concatenated files have one each
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := w.encodeLine(ch, piece.in, replaceNaN(line), "line", number); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}

// encodeLine encodes the document of a line. unit and number say where it is, such as line 7.
func (w *encodeWorker) encodeLine(ch *chunk, in *input, line []byte, unit string, number int64) error {
	if !utf8.Valid(line) {
		switch {
		case w.replaceInvalid:
			line = replaceInvalid(line)
			ch.notes.Replaced.add(location(unit, number, in))
		case w.skipInvalid:
			addLeftOut(&ch.notes.NotUTF8, 1, location(unit, number, in))
			return nil
		default:
			return fmt.Errorf("not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip", firstInvalid(line))
		}
	}
	ch.notes.Lines++
	texts, counted, err := w.lineTexts(line)
	if unusable, ok := errors.AsType[unusableError](err); ok {
		if w.skipInvalid {
			ch.notes.addUnusable(unusable.kind, location(unit, number, in))
			return nil
		}
		return fmt.Errorf("%w; to leave such %ss out, use --invalid skip", err, unit)
	}
	if err != nil {
		return err
	}
	ch.notes.add(counted)
	return w.encodeDocument(ch, in, texts, unit, number)
}

// lineTexts returns the texts to which the fields lead, and what was counted on the way. If there
// are no such texts, names that are separated by dots may be a single key.
func (w *encodeWorker) lineTexts(line jsontext.Value) ([]maskedText, *notes, error) {
	texts, counted, err := w.fieldTexts(line, false)
	if err != nil && w.hasDots {
		if texts, counted, err := w.fieldTexts(line, true); err == nil {
			return texts, counted, nil
		}
	}
	return texts, counted, err
}

func (w *encodeWorker) fieldTexts(line jsontext.Value, joinNames bool) ([]maskedText, *notes, error) {
	all := w.notes
	defer func() { w.notes = all }()
	w.lineNotes = notes{}
	w.notes, w.joinNames = &w.lineNotes, joinNames
	texts, err := w.appendTexts(nil, line, w.fields, 0)
	return texts, w.notes, err
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
