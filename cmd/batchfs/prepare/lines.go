package prepare

import (
	"bytes"
	"fmt"
	"unicode/utf8"
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
		case n == 0:
			return fmt.Errorf("line %d has more than %d bytes, which is the limit: shorten it", pos.Line+1, maxLine)
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

func (w *encodeWorker) encodeLines(ch *chunk, piece *textPiece) error {
	number := piece.start.Line
	for line := range bytes.Lines(piece.text) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if !w.replaceInvalid && !utf8.Valid(line) {
			if w.skipInvalid {
				addLeftOut(&ch.notes.NotUTF8, 1, location("line", number, piece.in))
				continue
			}
			return fmt.Errorf("line %d: not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip", number, firstInvalid(line))
		}
		texts, err := w.appendTexts(nil, line, w.fields, 0)
		if err == nil {
			err = w.encodeDocument(ch, piece.in, texts, "line", number)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}
