package prepare

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	parquetgo "github.com/parquet-go/parquet-go"
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
	Offset int64 `json:"offset"` // bytes of decompressed content; rows of a parquet file
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
	// startsDocument and endsDocument say which ends of its document a piece includes.
	startsDocument, endsDocument bool
	invalidText                  bool // whether the text is left out, because it is not UTF-8
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

// A reader cuts inputs into chunks. It belongs to one goroutine.
type reader struct {
	inputs     []*input
	column     []string // path of the column in parquet files
	stdin      io.Reader
	scratchDir string // directory for decompressed parquet files
	bytesRead  int64  // bytes read of all inputs, as stored on disk

	skipInvalid bool                   // whether to leave out texts that are not UTF-8
	cut         func(text []byte) int  // returns how much of a text can be encoded without the rest
	inVal       func(text []byte) bool // reports whether a text with this beginning belongs to val
	// valStart is the offset of val in a single text; 0 if inVal decides for each document.
	valStart int64
	emit     func(*chunk) error // never called again after an error

	current *chunk
	buf     []byte
	emitErr error
}

// newReader returns a reader. The caller must set emit, stdin if standard input is an input, and
// scratchDir if a parquet file is compressed.
func newReader(inputs []*input, c *encodeOptions) *reader {
	return &reader{inputs: inputs, column: c.fields[0].names(), inVal: c.inVal, cut: c.Cut, skipInvalid: c.leavesOutBinary()}
}

// read reads the inputs, starting at a position, and emits their chunks.
func (r *reader) read(from position) error {
	r.current, r.buf = chunks.Get().(*chunk), make([]byte, 0, chunkSize)
	before := totalSize(r.inputs[:from.Input])
	for ; from.Input < len(r.inputs); from = (position{Input: from.Input + 1}) {
		in := r.inputs[from.Input]
		r.bytesRead = before
		before += in.size()
		read, offset := r.readText, from.Offset
		if in.format == parquetFormat {
			read, offset = r.readRows, 0
		}
		s, err := in.open(r.stdin, offset, r.countBytes)
		if err != nil {
			return err
		}
		if err = read(s, from); err == nil {
			err = s.checkUnchanged()
		}
		s.Close()
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

// fill reads until buf holds n bytes or the input ends. It drops a byte order mark.
func (r *reader) fill(s io.Reader, pos *position, n int) (end bool, err error) {
	r.buf = slices.Grow(r.buf, max(0, n-len(r.buf)))
	for len(r.buf) < n && err == nil {
		var read int
		read, err = s.Read(r.buf[len(r.buf):n])
		r.buf = r.buf[:len(r.buf)+read]
	}
	if pos.Offset == 0 && bytes.HasPrefix(r.buf, byteOrderMark) {
		r.dropPrefix(len(byteOrderMark))
		pos.Offset = int64(len(byteOrderMark))
	}
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

func (r *reader) dropPrefix(n int) { r.buf = r.buf[:copy(r.buf, r.buf[n:])] }

// readText reads a text or JSON Lines.
func (r *reader) readText(s *stream, pos position) error {
	r.buf = r.buf[:0]
	lines := s.in.format == jsonlFormat
	begins := pos.Offset == 0
	for want := chunkSize; ; begins = false {
		end, err := r.fill(s, &pos, want)
		if err != nil {
			return err
		}
		if begins {
			switch kind := nonTextContent(s.in, r.buf); {
			case kind == nil:
			case kind.binary && r.skipInvalid:
				return r.add(textPiece{in: s.in, start: pos, invalidText: true}, position{Input: pos.Input + 1})
			default:
				return kind.refused()
			}
		}
		if !lines && !pos.Within {
			pos.Val = s.in.val || r.valStart > 0 && pos.Offset >= r.valStart || r.valStart == 0 && r.inVal(r.buf)
		}
		n := len(r.buf)
		switch {
		case end:
		case lines:
			n = bytes.LastIndexByte(r.buf, '\n') + 1
		default:
			n = r.cut(r.buf)
		}
		piece := textPiece{in: s.in, start: pos, startsDocument: !pos.Within, endsDocument: end}
		if r.skipInvalid && !lines && piece.startsDocument && !end {
			if piece.invalidText, err = s.in.hasInvalidUTF8(); err != nil {
				return err
			} else if piece.invalidText {
				return r.add(piece, position{Input: pos.Input + 1})
			}
		}
		if pos.Offset < r.valStart && r.valStart <= pos.Offset+int64(n) { // train ends here
			n = int(r.valStart - pos.Offset)
			piece.endsDocument = true
		}
		switch {
		case n == 0 && piece.startsDocument && end: // an empty text
			if !lines {
				addLeftOut(&r.current.notes.Empty, 1, s.in.path)
			}
			return nil
		case n == 0 && !piece.endsDocument && want < maxLine:
			want *= 2
			continue
		case n == 0 && !piece.endsDocument:
			return tooLong(pos, lines)
		}
		piece.text = r.buf[:n]
		pos.Offset += int64(n)
		if lines {
			pos.Line += int64(bytes.Count(piece.text, []byte("\n")))
		} else {
			pos.Within = !piece.endsDocument
		}
		next := pos
		last := end && n == len(r.buf)
		if last {
			next = position{Input: pos.Input + 1}
		}
		if err := r.add(piece, next); err != nil || last {
			return err
		}
		r.dropPrefix(n)
		want = chunkSize
	}
}

func tooLong(pos position, lines bool) error {
	if lines {
		return fmt.Errorf("line %d has more than %d bytes, which is the limit: shorten it", pos.Line+1, maxLine)
	}
	return fmt.Errorf("no word ends in the %d bytes from byte %d on, which is the limit: break the text into lines", maxLine, pos.Offset)
}

// readRows reads a column of a parquet file, one document for each row.
func (r *reader) readRows(s *stream, pos position) (err error) {
	defer func() {
		if p := recover(); p != nil { // parquet-go panics if a file is broken
			err = fmt.Errorf("is not a valid parquet file: %v", p)
		}
	}()
	file, size := s.file, s.in.size()
	if file == nil || s.in.readableOnce() || s.compressed {
		if file, size, err = r.spool(s); err != nil {
			return err
		}
		defer file.Close()
	}
	f, err := parquetgo.OpenFile(file, size, parquetgo.SkipPageIndex(true), parquetgo.SkipBloomFilters(true))
	if err != nil {
		return err
	}
	name := strings.Join(r.column, ".")
	column, err := r.textColumn(f, name)
	if err != nil {
		return err
	}
	rowBytes := float64(s.in.size()) / float64(f.NumRows())
	if s.compressed {
		rowBytes = 0 // spool has counted all bytes
	}
	r.countBytes(int(rowBytes * float64(pos.Offset)))
	row := int64(0)
	for i, group := range f.RowGroups() {
		if row+group.NumRows() <= pos.Offset {
			row += group.NumRows()
			continue
		}
		values := newColumnReader(file, &f.Metadata().RowGroups[i].Columns[column].MetaData)
		pages := group.ColumnChunks()[column].(*parquetgo.FileColumnChunk).PagesFrom(values)
		if err := pages.SeekToRow(pos.Offset - row); err != nil {
			pages.Close()
			return err
		}
		row += group.NumRows()
		err := r.readPages(s.in, pages, &pos, rowBytes)
		pages.Close()
		if values.err != nil {
			return fmt.Errorf("column %s %w", name, values.err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) textColumn(f *parquetgo.File, name string) (int, error) {
	column, ok := f.Schema().Lookup(r.column...)
	switch {
	case !ok:
		var names []string
		for _, path := range f.Schema().Columns() {
			names = append(names, strings.Join(path, "."))
		}
		return 0, fmt.Errorf("has no column %s, only %s: choose one with --field", name, strings.Join(names, ", "))
	case column.Node.Type().Kind() != parquetgo.ByteArray || column.MaxRepetitionLevel > 0:
		return 0, fmt.Errorf("column %s does not have one text for each row: choose another one with --field", name)
	}
	return column.ColumnIndex, nil
}

// readPages adds the texts in pages of a column. rowBytes is the average size of a row on disk.
func (r *reader) readPages(in *input, pages parquetgo.Pages, pos *position, rowBytes float64) error {
	var values [256]parquetgo.Value
	for {
		page, err := pages.ReadPage()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		from := page.Values()
		for err != io.EOF {
			var n int
			if n, err = from.ReadValues(values[:]); err != nil && err != io.EOF {
				return err
			}
			r.countBytes(int(rowBytes * float64(n)))
			for _, value := range values[:n] {
				piece := textPiece{text: value.ByteArray(), in: in, start: *pos, startsDocument: true, endsDocument: true}
				pos.Offset++
				if len(piece.text) > maxLine {
					return fmt.Errorf("row %d has more than %d bytes, which is the limit: shorten it", pos.Offset, maxLine)
				}
				if err := r.add(piece, *pos); err != nil {
					return err
				}
			}
		}
		parquetgo.Release(page)
	}
}

// spool decompresses a parquet file to an unnamed file, because rows are read at any offset.
func (r *reader) spool(s *stream) (*os.File, int64, error) {
	file, err := os.CreateTemp(r.scratchDir, ".parquet-")
	if err != nil {
		return nil, 0, err
	}
	os.Remove(file.Name())
	size, err := io.Copy(file, s)
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, size, nil
}

// runeEnd returns the length of text without an incomplete character at its end.
func runeEnd(text []byte) int {
	last := max(0, len(text)-1)
	for last > max(0, len(text)-utf8.UTFMax) && !utf8.RuneStart(text[last]) {
		last--
	}
	if utf8.FullRune(text[last:]) {
		return len(text)
	}
	return last
}

// wordEnd returns how many bytes of text can be encoded without the rest, or 0. They end before a
// space between two letters, or after a newline that precedes a letter and does not follow white
// space. All tokenizers split a text there before they merge anything, unless joins reports that an
// added token may contain the bytes on both sides.
func wordEnd(text []byte, joins func(before, after byte) bool) int {
	for i := len(text) - 1; i > 0; i-- {
		if text[i] != ' ' && text[i] != '\n' {
			continue
		}
		before, _ := utf8.DecodeLastRune(text[:i])
		after, _ := utf8.DecodeRune(text[i+1:])
		switch {
		case !unicode.IsLetter(after):
		case text[i] == ' ' && unicode.IsLetter(before) && !joins(text[i-1], ' '):
			return i
		case text[i] == '\n' && !unicode.IsSpace(before) && !joins('\n', text[i+1]):
			return i + 1
		}
	}
	return 0
}
