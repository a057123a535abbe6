package prepare

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"unicode/utf8"
)

// Limits on memory, in bytes. They are variables so that tests can lower them.
var (
	chunkSize = 128 << 10 // text that is read and encoded at a time
	maxLine   = 64 << 20  // longest line, row, or stretch of text in which no word ends
)

// maxChunks limits the chunks in memory, however many processors there are. Few workers get fewer,
// so that their chunks stay in the processor's cache.
const maxChunks = 256

var byteOrderMark = []byte("\ufeff")

// A position is a point between two text pieces, from which reading can resume. Checkpoints store
// it.
type position struct {
	Input  int   `json:"input"`
	Offset int64 `json:"offset"` // bytes of decompressed content; rows of a parquet or Arrow file
	Line   int64 `json:"line"`   // lines before this position, in JSON Lines
	Within bool  `json:"within"` // whether the position is inside a document
	Val    bool  `json:"val"`    // whether that document belongs to val
	Read   int64 `json:"read"`   // bytes read of all inputs, as stored on disk
}

// A textPiece is a part of an input that can be encoded without the rest: lines of JSON Lines, a
// row, or a text or part of one.
type textPiece struct {
	text  []byte
	in    *input
	start position
	// startsDocument and endsDocument say which ends of its document a piece of a text includes.
	startsDocument, endsDocument bool
	leftOut                      bool // whether all of the input is left out: it is not UTF-8
}

// A chunk is a group of text pieces that one worker encodes at a time. It carries their text, and
// later their tokens, through the pipeline.
type chunk struct {
	pieces []textPiece
	text   []byte   // text of the pieces
	end    position // beginning of the next chunk

	permits int // permits of the pipeline that the chunk holds
	encoded [len(splits)]encodedTokens
	err     error
	done    chan struct{} // closed when encoded, notes and err are set

	notes notes
}

// chunks recycles the memory of chunks, because on many processors the heap would grow a lot while
// the garbage collector runs.
var chunks = sync.Pool{New: func() any { return new(chunk) }}

func (c *chunk) recycle() {
	*c = chunk{pieces: c.pieces[:0], text: c.text[:0], encoded: c.encoded}
	for i, e := range c.encoded {
		c.encoded[i] = encodedTokens{tokens: e.tokens[:0], mask: e.mask[:0], ends: e.ends[:0]}
	}
	chunks.Put(c)
}

// tokens returns the number of tokens in the chunk, each of which has width bytes.
func (c *chunk) tokens(width int) (n int64) {
	for _, e := range c.encoded {
		n += int64(len(e.tokens) / width)
	}
	return n
}

// inputFormats says how the inputs of each format become documents: read cuts an input into pieces,
// and encode encodes the documents of a piece.
var inputFormats = map[inputFormat]struct {
	read   func(r *reader, s *stream, from position) error
	encode func(w *encodeWorker, ch *chunk, piece *textPiece) error
	byRow  bool // whether positions count rows instead of bytes
}{
	textFormat:    {read: (*reader).readText, encode: (*encodeWorker).encodeText},
	jsonlFormat:   {read: (*reader).readLines, encode: (*encodeWorker).encodeLines},
	parquetFormat: {read: (*reader).readParquet, encode: (*encodeWorker).encodeRow, byRow: true},
	arrowFormat:   {read: (*reader).readArrow, encode: (*encodeWorker).encodeRow, byRow: true},
}

// A reader cuts inputs into chunks. It belongs to one goroutine.
type reader struct {
	*plan
	scratchDir string             // directory for decompressed parquet files; empty for the default
	emit       func(*chunk) error // never called again after an error
	bytesRead  int64              // bytes read of all inputs, as stored on disk

	current *chunk
	emitErr error

	buf   []byte // text of the current input, which has been read but not added
	ended bool   // whether the current input has no text after buf
}

func newReader(p *plan, scratchDir string, emit func(*chunk) error) *reader {
	return &reader{plan: p, scratchDir: scratchDir, emit: emit}
}

// read reads the inputs, starting at a position, and emits their chunks.
func (r *reader) read(from position) error {
	r.current, r.buf = chunks.Get().(*chunk), make([]byte, 0, chunkSize)
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
			return fmt.Errorf("%s: %w", in.path, err)
		}
	}
	from.Read = before
	r.current.end = from
	return r.emit(r.current)
}

func (r *reader) readInput(in *input, from position) error {
	format, offset := inputFormats[in.format], from.Offset
	if format.byRow {
		offset = 0
	}
	s, err := in.open(offset, r.countBytes)
	if err != nil {
		return err
	}
	defer s.Close()
	return cmp.Or(format.read(r, s, from), s.checkUnchanged())
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

// begin starts to read text at a position, and skips a byte order mark. It reports whether the
// input is left out, and returns an error if the input does not begin like text.
func (r *reader) begin(s *stream, pos *position) (leftOut bool, err error) {
	r.buf, r.ended = r.buf[:0], false
	if err := r.fill(s, chunkSize); err != nil || pos.Offset > 0 {
		return false, err
	}
	if bytes.HasPrefix(r.buf, byteOrderMark) {
		r.drop(len(byteOrderMark))
		pos.Offset = int64(len(byteOrderMark))
	}
	switch kind := nonTextContent(s.in, r.buf); {
	case s.decompressor == nil && isCompressedName(s.in.path) && !s.in.asText && !utf8.Valid(r.buf[:runeEnd(r.buf)]):
		return false, errors.New("is neither gzip nor zstd, and not text: copy or download the file again, or leave it out")
	case kind == nil:
		return false, nil
	case kind.binary && r.leavesOutBinary():
		return true, r.leaveOut(s.in, *pos)
	default:
		return false, kind.refused()
	}
}

func (r *reader) leaveOut(in *input, pos position) error {
	return r.add(textPiece{in: in, start: pos, leftOut: true}, position{Input: pos.Input + 1})
}

// fillToCut reads until cut finds a place in the buffer or the input ends. It returns the length of
// the text before that place. If the buffer is full and has no such place, it returns 0.
func (r *reader) fillToCut(s *stream, cut func(text []byte) int) (int, error) {
	for size := chunkSize; ; size *= 2 {
		if err := r.fill(s, size); err != nil {
			return 0, err
		}
		if r.ended {
			return len(r.buf), nil
		}
		if n := cut(r.buf); n > 0 || size >= maxLine {
			return n, nil
		}
	}
}

// fill reads until the buffer holds n bytes or the input ends.
func (r *reader) fill(s *stream, n int) error {
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
