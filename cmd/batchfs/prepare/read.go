package prepare

import (
	"cmp"
	"fmt"
)

// A reader cuts inputs into chunks. It belongs to one goroutine.
type reader struct {
	inputs     []*input
	encoding   *encoding
	val        valRule
	scratchDir string             // directory for decompressed parquet files; empty for the default
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
		before += in.size()
		err := r.readInput(in, from)
		switch {
		case r.emitErr != nil: // not caused by the input
			return r.emitErr
		case err != nil:
			return fmt.Errorf("%s: %w", in.name(), err)
		}
	}
	from.Read = before
	r.current.end = from
	return r.emit(r.current)
}

func (r *reader) readInput(in *input, from position) error {
	offset := from.Offset
	if in.format.hasRows() {
		offset = 0
	} else if in.part != nil {
		from.Offset = in.part.begin
	}
	s, err := in.open(offset, r.countBytes)
	if err != nil {
		return err
	}
	defer s.Close()
	switch format := in.format; {
	case format == textFormat && !r.textsByLine:
		err = r.readText(s, from)
	case format == textFormat, format == jsonlFormat:
		err = r.readLines(s, from)
	case format == parquetFormat:
		err = r.readParquet(s, from)
	case format == arrowFormat:
		err = r.readArrow(s, from)
	}
	return cmp.Or(err, s.checkUnchanged())
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

func (r *reader) leaveOut(in *input, pos position) error {
	return r.add(textPiece{in: in, start: pos, leftOut: true}, position{Input: pos.Input + 1})
}

// countTooLong counts a line or row that is left out because it is too long.
func (r *reader) countTooLong(in *input, at place) {
	if r.encoding.isJSON(in.format) {
		r.current.notes.Lines++
	}
	r.current.notes.addUnusable(tooLong, at.of(in))
}
