package prepare

import (
	"fmt"
	"io"
	"unicode/utf8"
)

// readText reads a text: one document, or two if val begins inside it.
func (r *reader) readText(s *stream, pos position) error {
	if leftOut, err := r.begin(s, &pos); leftOut || err != nil {
		return err
	}
	for {
		n, err := r.fillToCut(s, r.encoding.tokenizer.Cut)
		if err != nil {
			return err
		}
		if !pos.Within {
			pos.Val = r.val.has(s.in, pos.Offset, r.buf)
			if leftOut, err := r.leaveOutInvalid(s, pos); leftOut || err != nil {
				return err
			}
		}
		n, ends := r.documentEnd(pos, n)
		switch {
		case n == 0 && ends && !pos.Within:
			addLeftOut(&r.current.notes.Empty, 1, s.in.path)
			return nil
		case n == 0 && !ends:
			return fmt.Errorf("no word ends in the %d bytes from byte %d on, which is the limit: break the text into lines", maxLine, pos.Offset)
		}
		piece := textPiece{text: r.buf[:n], in: s.in, start: pos, startsDocument: !pos.Within, endsDocument: ends}
		pos.Offset += int64(n)
		pos.Within = !ends
		next, last := pos, r.ended && n == len(r.buf)
		if last {
			next = position{Input: pos.Input + 1}
		}
		if err := r.add(piece, next); err != nil || last {
			return err
		}
		r.drop(n)
	}
}

// leaveOutInvalid leaves out an input that is not UTF-8, if the options say so. A document of the
// input begins at pos. So that there is only one decompressor at a time, leaveOutInvalid closes a
// compressed input, and opens it again after the check.
func (r *reader) leaveOutInvalid(s *stream, pos position) (leftOut bool, err error) {
	if !r.encoding.leavesOutBinary() || r.ended { // a worker checks a document that is one piece
		return false, nil
	}
	if s.decompressor != nil {
		s.Close()
	}
	leftOut, err = s.in.hasInvalidUTF8()
	if s.decompressor != nil {
		read := r.bytesRead
		again, openError := s.in.open(pos.Offset+int64(len(r.buf)), r.countBytes)
		if openError != nil {
			return false, openError
		}
		*s, r.bytesRead = *again, read
	}
	if leftOut {
		err = r.leaveOut(s.in, pos)
	}
	return leftOut, err
}

// documentEnd returns how many of the first n bytes in the buffer belong to the current document,
// and whether it ends after them.
func (r *reader) documentEnd(pos position, n int) (int, bool) {
	if train := r.val.start - pos.Offset; 0 < train && train <= int64(n) {
		return int(train), true
	}
	return n, r.ended
}

// hasInvalidUTF8 reads the whole input and reports whether it is invalid UTF-8.
func (in *input) hasInvalidUTF8() (bool, error) {
	s, err := in.open(0, func(int) {})
	if err != nil {
		return false, err
	}
	defer s.Close()
	buf, rest := make([]byte, 1<<16), 0 // rest is the length of an incomplete character
	for {
		n, err := s.Read(buf[rest:])
		text := buf[:rest+n]
		end := runeEnd(text)
		if err == io.EOF {
			end = len(text)
		}
		switch {
		case err != nil && err != io.EOF:
			return false, err
		case !utf8.Valid(text[:end]):
			return true, nil
		case err == io.EOF:
			return false, nil
		}
		rest = copy(buf, text[end:])
	}
}
