package prepare

import (
	"bytes"
	"fmt"
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
		case n == 0 && r.encoding.skipInvalid:
			if err := r.leaveOutLine(s, &pos); err != nil {
				return err
			}
			continue
		case n == 0:
			return fmt.Errorf("line %d has more than %d bytes, which is the limit: shorten it, or let prepare leave such lines out with --invalid skip", pos.Line+1, maxLine)
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
	r.current.notes.addUnusable(tooLong, place{"line", pos.Line}.of(s.in))
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
