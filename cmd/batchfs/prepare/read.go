package prepare

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"batchfs/cmd/batchfs/prepare/input"
)

// A reader cuts inputs into chunks. It belongs to one goroutine.
type reader struct {
	inputs     []*input.File
	encoding   *encoding
	val        valRule
	scratchDir string             // directory for spooled files of rows; empty for the default
	emit       func(*chunk) error // never called again after an error
	bytesRead  int64              // bytes read of all inputs, as stored on disk

	textsByLine bool // whether pieces of texts consist of lines, as those of JSON lines do

	current *chunk
	emitErr error

	buf   []byte // text of the current input, which has been read but not added
	ended bool   // whether the current input has no text after buf
}

func newReader(p *plan, scratchDir string, emit func(*chunk) error) *reader {
	return &reader{inputs: p.inputs, encoding: &p.encoding, val: p.val, scratchDir: scratchDir, emit: emit}
}

// read reads the inputs, starting at a position, and emits their chunks.
func (r *reader) read(from position) error {
	r.current, r.buf = chunks.Get().(*chunk), make([]byte, 0, chunkSize+1)
	before := totalSize(r.inputs[:from.Input])
	for ; from.Input < len(r.inputs); from = (position{Input: from.Input + 1}) {
		in := r.inputs[from.Input]
		r.bytesRead = before
		before += in.Size()
		err := r.readInput(in, from)
		switch {
		case r.emitErr != nil: // not caused by the input
			return r.emitErr
		case err != nil:
			return fmt.Errorf("%s: %w", in.Name(), err)
		}
	}
	from.Read = before
	r.current.end = from
	return r.emit(r.current)
}

func (r *reader) readInput(in *input.File, from position) error {
	offset := from.Offset
	if in.Format.HasRows() {
		offset = 0
	} else if in.Part != nil {
		from.Offset = in.Part.Begin
	}
	s, err := in.Open(offset, r.countBytes)
	if err != nil {
		return err
	}
	defer s.Close()
	switch format := in.Format; {
	case format == input.Text && !r.textsByLine:
		err = r.readText(s, from)
	case format == input.Text, format == input.JSONL:
		err = r.readLines(s, from)
	default:
		err = r.readRows(s, from)
	}
	return cmp.Or(err, s.CheckUnchanged())
}

func (r *reader) countBytes(n int) { r.bytesRead += int64(n) }

// add appends a text piece that ends at position end to the current chunk, and emits the chunk if
// it is full.
func (r *reader) add(piece textPiece, end position) error {
	begin := len(r.current.text)
	r.current.text = append(r.current.text, piece.text...)
	piece.text = r.current.text[begin:]
	r.current.pieces = append(r.current.pieces, piece)
	end.Read = r.bytesRead
	r.current.end = end
	if len(r.current.text) < chunkSize/2 && len(r.current.pieces) < 1<<14 {
		return nil
	}
	full := r.current
	r.current = chunks.Get().(*chunk)
	r.emitErr = r.emit(full)
	return r.emitErr
}

func (r *reader) leaveOut(in *input.File, pos position) error {
	return r.add(textPiece{in: in, start: pos, leftOut: true}, position{Input: pos.Input + 1})
}

// countTooLong counts a line or row that is left out because it is too long.
func (r *reader) countTooLong(in *input.File, at place) {
	r.current.notes.Lines++
	r.current.notes.addUnusable(tooLong, at.of(in))
}

// readLines reads JSON lines, or texts of one line each. It only cuts them, because decoding takes
// long.
func (r *reader) readLines(s *input.Stream, pos position) error {
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
			return fmt.Errorf("line %d has more than %d bytes, which is the limit: shorten it, or let prepare leave such lines out with "+
				"--invalid skip", pos.Line+1, maxLine)
		}
		piece := textPiece{text: r.buf[:n], in: s.File, start: pos}
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
func (r *reader) leaveOutLine(s *input.Stream, pos *position) error {
	pos.Line++
	r.countTooLong(s.File, place{"line", pos.Line})
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

// readText reads a text: one document, or two if val begins inside it.
func (r *reader) readText(s *input.Stream, pos position) error {
	if leftOut, err := r.begin(s, &pos); leftOut || err != nil {
		return err
	}
	for {
		n, err := r.fillToCut(s, r.encoding.tokenizer.Cut)
		if err != nil {
			return err
		}
		if !pos.Within {
			pos.Val = r.val.has(s.File, pos.Offset, r.buf)
			if leftOut, err := r.leaveOutInvalid(s, pos); leftOut || err != nil {
				return err
			}
		}
		n, ends := r.documentEnd(pos, n)
		switch {
		case n == 0 && ends && !pos.Within:
			addLeftOut(&r.current.notes.Empty, 1, s.File.Path)
			return nil
		case n == 0 && !ends:
			return fmt.Errorf("no word ends in the %d bytes from byte %d on, which is the limit: break the text into lines", maxLine, pos.Offset)
		}
		piece := textPiece{text: r.buf[:n], in: s.File, start: pos, startsDocument: !pos.Within, endsDocument: ends}
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
func (r *reader) leaveOutInvalid(s *input.Stream, pos position) (leftOut bool, err error) {
	if !r.encoding.leavesOutBinary() || r.ended { // a worker checks a document that is one piece
		return false, nil
	}
	if s.Compressed() {
		s.Close()
	}
	leftOut, err = hasInvalidUTF8(s.File)
	if s.Compressed() {
		read := r.bytesRead
		again, openError := s.File.Open(pos.Offset+int64(len(r.buf)), r.countBytes)
		if openError != nil {
			return false, openError
		}
		*s, r.bytesRead = *again, read
	}
	if leftOut {
		err = r.leaveOut(s.File, pos)
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

// hasInvalidUTF8 reads a whole input and reports whether it is invalid UTF-8.
func hasInvalidUTF8(in *input.File) (bool, error) {
	s, err := in.Open(0, func(int) {})
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

var byteOrderMark = []byte("\ufeff")

// begin starts to read text at a position, and skips a byte order mark. It reports whether the
// input is left out, and returns an error if the input does not begin like text.
func (r *reader) begin(s *input.Stream, pos *position) (leftOut bool, err error) {
	r.buf, r.ended = r.buf[:0], false
	if err := r.fill(s, chunkSize); err != nil || pos.Offset > 0 {
		return false, err
	}
	if bytes.HasPrefix(r.buf, byteOrderMark) {
		r.drop(len(byteOrderMark))
		pos.Offset = int64(len(byteOrderMark))
	}
	switch kind := s.File.NonTextContent(r.buf); {
	case s.File.Format == input.Text && (r.encoding.ids || r.encoding.masked || r.encoding.id != nil):
		// The options need fields, which a text lacks. Only a text with the name of a binary file
		// gets here, because checkInputs rejects all others.
		return true, r.leaveOut(s.File, *pos)
	case !s.Compressed() && s.File.HasCompressedName() && !s.File.AsText && !utf8.Valid(r.buf[:runeEnd(r.buf)]):
		return false, errors.New("is neither gzip nor zstd, and not text: copy or download the file again, or leave it out")
	case kind == nil:
		return false, nil
	case kind.Binary && r.encoding.leavesOutBinary():
		return true, r.leaveOut(s.File, *pos)
	default:
		return false, kind.Refused()
	}
}

// fillToCut reads until cut finds a place in the buffer or the input ends. It returns the length of
// the text before that place. If the buffer is full and has no such place, it returns 0. Only if
// the input has ended or the buffer is full can that be all of the text in the buffer.
func (r *reader) fillToCut(s *input.Stream, cut func(text []byte) int) (int, error) {
	for size := chunkSize; ; size *= 2 {
		if err := r.fill(s, size); err != nil {
			return 0, err
		}
		if r.ended {
			return len(r.buf), nil
		}
		n := cut(r.buf)
		// One more byte shows whether the input ends here, or the longest line does.
		if n == len(r.buf) || n == 0 && size >= maxLine {
			if err := r.fill(s, len(r.buf)+1); err != nil {
				return 0, err
			}
			if r.ended {
				return len(r.buf), nil
			}
			if n == 0 {
				n = cut(r.buf)
			}
		}
		if n > 0 || size >= maxLine {
			return n, nil
		}
	}
}

// fill reads until the buffer holds n bytes or the input ends.
func (r *reader) fill(s *input.Stream, n int) error {
	r.buf = slices.Grow(r.buf, max(0, n-len(r.buf)))
	for len(r.buf) < n && !r.ended {
		read, err := s.Read(r.buf[len(r.buf):n])
		r.buf = r.buf[:len(r.buf)+read]
		r.ended = err == io.EOF
		if err != nil && !r.ended {
			return err
		}
	}
	return nil
}

// drop removes the first n bytes of the buffer.
func (r *reader) drop(n int) { r.buf = r.buf[:copy(r.buf, r.buf[n:])] }

func totalSize(inputs []*input.File) (all int64) {
	for _, in := range inputs {
		all += in.Size()
	}
	return all
}
