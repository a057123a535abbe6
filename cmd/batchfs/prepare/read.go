package prepare

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	parquetgo "github.com/parquet-go/parquet-go"

	"batchfs/cmd/batchfs/vocabulary"
)

// Tests make these smaller.
var (
	chunkSize = 1 << 20  // how much text is read, and then encoded, at a time
	maxLine   = 64 << 20 // the most that must be in memory as one: a line or a row, or a text in which no word ends
)

var byteOrderMark = []byte("\ufeff")

// A position is a point between two text pieces, from which reading can begin again.
type position struct {
	Input  int   `json:"input"`
	Offset int64 `json:"offset"` // in what the input holds decompressed, in bytes; in a parquet file, in rows
	Line   int64 `json:"line"`   // of jsonl: how many came before
	Within bool  `json:"within"` // a document, which is in val or not
	Val    bool  `json:"val"`
	Read   int64 `json:"read"` // bytes of all inputs, as they are on the disk
}

// A textPiece is what one worker encodes at a time: whole lines of jsonl, one row, a text, or a part of a text.
type textPiece struct {
	text         []byte
	in           *input
	at           position // where it begins
	begins, ends bool     // of a text: whether its document does
	invalid      bool     // the whole text is left out, as it is not UTF-8
}

// A chunk is text pieces that are encoded together.
type chunk struct {
	pieces []textPiece
	size   int      // of all texts
	end    position // of the next chunk

	quota int // that it takes of what may be under way
	out   [len(splits)]encoded
	err   error
	done  chan struct{} // closed when out, err and leftOut are there

	leftOut vocabulary.LeftOut
}

func (b *chunk) leaveOut(what string) {
	b.leftOut.First = cmp.Or(b.leftOut.First, what)
	b.leftOut.Documents++
}

// A reader cuts inputs into chunks.
type reader struct {
	inputs  []*input
	column  []string // the names, one in another, of the column of a parquet file
	stdin   io.Reader
	scratch string // a directory for what must be decompressed to a file
	bytes   int64  // that were read of all inputs, as they are on the disk

	whole bool                   // a text is left out unless all of it is UTF-8
	cut   func(text []byte) int  // how much of a text can be encoded without the rest
	inVal func(text []byte) bool // of a text that begins so
	tail  int64                  // of a single text, val begins at this offset; 0 if inVal says
	emit  func(*chunk) error     // is not called again after an error

	chunk   *chunk
	buf     []byte
	stopped error // the error of emit
}

// newReader returns a reader of the inputs for c. The caller must set stdin to read standard input,
// and scratch to read compressed Parquet files.
func newReader(inputs []*input, c *encodeOptions) *reader {
	return &reader{inputs: inputs, column: c.fields[0].names(), inVal: c.inVal, cut: c.Cut, whole: c.skip && !c.any}
}

func (r *reader) read(from position) error {
	r.chunk, r.buf = new(chunk), make([]byte, 0, chunkSize)
	before := sizes(r.inputs[:from.Input])
	for ; from.Input < len(r.inputs); from = (position{Input: from.Input + 1}) {
		in := r.inputs[from.Input]
		r.bytes = before
		before += in.size()
		read, offset := r.readText, from.Offset
		if in.format == parquet {
			read, offset = r.readRows, 0
		}
		s, err := in.open(r.stdin, offset, r.count)
		if err != nil {
			return err
		}
		if err = read(s, from); err == nil {
			err = s.unchanged()
		}
		s.Close()
		switch {
		case r.stopped != nil: // which has nothing to do with the input
			return r.stopped
		case err != nil:
			return fmt.Errorf("%s: %w", in.path, err)
		}
	}
	from.Read = before
	r.chunk.end = from
	return r.emit(r.chunk)
}

func (r *reader) count(n int) { r.bytes += int64(n) }

// add appends a text piece that ends at a position, and emits a chunk that is large enough.
func (r *reader) add(c textPiece, end position) error {
	c.text = bytes.Clone(c.text)
	r.chunk.pieces = append(r.chunk.pieces, c)
	r.chunk.size += len(c.text)
	end.Read = r.bytes
	r.chunk.end = end
	if r.chunk.size < chunkSize/2 && len(r.chunk.pieces) < 1<<14 {
		return nil
	}
	full := r.chunk
	r.chunk = new(chunk)
	r.stopped = r.emit(full)
	return r.stopped
}

// fill reads until buf holds n bytes, or reports the end. It drops a byte order mark at the beginning of the input.
func (r *reader) fill(s io.Reader, at *position, n int) (end bool, err error) {
	r.buf = slices.Grow(r.buf, max(0, n-len(r.buf)))
	for len(r.buf) < n && err == nil {
		var read int
		read, err = s.Read(r.buf[len(r.buf):n])
		r.buf = r.buf[:len(r.buf)+read]
	}
	if at.Offset == 0 && bytes.HasPrefix(r.buf, byteOrderMark) {
		r.drop(len(byteOrderMark))
		at.Offset = int64(len(byteOrderMark))
	}
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

func (r *reader) drop(n int) { r.buf = r.buf[:copy(r.buf, r.buf[n:])] }

// readText reads a text, or lines of jsonl, in parts that can be encoded one without the other.
func (r *reader) readText(s *stream, at position) error {
	r.buf = r.buf[:0]
	lines := s.in.format == jsonl
	for want := chunkSize; ; {
		end, err := r.fill(s, &at, want)
		if err != nil {
			return err
		}
		if !lines && !at.Within {
			at.Val = r.tail > 0 && at.Offset >= r.tail || r.tail == 0 && r.inVal(r.buf)
		}
		n := len(r.buf)
		switch {
		case end:
		case lines:
			n = bytes.LastIndexByte(r.buf, '\n') + 1
		default:
			n = r.cut(r.buf)
		}
		c := textPiece{in: s.in, at: at, begins: !at.Within, ends: end}
		if r.whole && !lines && c.begins && !end {
			if c.invalid, err = s.in.invalid(); err != nil {
				return err
			} else if c.invalid {
				return r.add(c, position{Input: at.Input + 1})
			}
		}
		if at.Offset < r.tail && r.tail <= at.Offset+int64(n) { // here train ends
			n = int(r.tail - at.Offset)
			c.ends = true
		}
		switch {
		case n == 0 && c.begins && end: // an empty text
			return nil
		case n == 0 && !c.ends && want < maxLine:
			want *= 2
			continue
		case n == 0 && !c.ends:
			return tooLong(at, lines)
		}
		c.text = r.buf[:n]
		at.Offset += int64(n)
		if lines {
			at.Line += int64(bytes.Count(c.text, []byte("\n")))
		} else {
			at.Within = !c.ends
		}
		next := at
		last := end && n == len(r.buf)
		if last {
			next = position{Input: at.Input + 1}
		}
		if err := r.add(c, next); err != nil || last {
			return err
		}
		r.drop(n)
		want = chunkSize
	}
}

func tooLong(at position, lines bool) error {
	if lines {
		return fmt.Errorf("line %d has more than %d bytes, the most that is held in memory: shorten it", at.Line+1, maxLine)
	}
	return fmt.Errorf("%d bytes from byte %d on without the end of a word, which is more than is held in memory: break it into lines", maxLine, at.Offset)
}

// readRows reads a column of a parquet file. A row without text is left out.
func (r *reader) readRows(s *stream, at position) (err error) {
	defer func() {
		if p := recover(); p != nil { // parquet-go's own way to say that a file is broken
			err = fmt.Errorf("is no sound parquet file: %v", p)
		}
	}()
	file, size := s.file, s.in.size()
	if file == nil || s.in.once() || s.compressed {
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
	bytes := float64(s.in.size()) / float64(f.NumRows()) // of a row
	if s.compressed {
		bytes = 0 // all were counted
	}
	r.count(int(bytes * float64(at.Offset)))
	row := int64(0)
	for i, group := range f.RowGroups() {
		if row+group.NumRows() <= at.Offset {
			row += group.NumRows()
			continue
		}
		values := newColumnReader(file, &f.Metadata().RowGroups[i].Columns[column].MetaData)
		pages := group.ColumnChunks()[column].(*parquetgo.FileColumnChunk).PagesFrom(values)
		if err := pages.SeekToRow(at.Offset - row); err != nil {
			pages.Close()
			return err
		}
		row += group.NumRows()
		err := r.readPages(s.in, pages, &at, bytes)
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
		return 0, fmt.Errorf("has no column %s, but %s: name one with --field", name, strings.Join(names, ", "))
	case column.Node.Type().Kind() != parquetgo.ByteArray || column.MaxRepetitionLevel > 0:
		return 0, fmt.Errorf("column %s is not one text for each row: name another with --field", name)
	}
	return column.ColumnIndex, nil
}

func (r *reader) readPages(in *input, pages parquetgo.Pages, at *position, bytes float64) error {
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
			r.count(int(bytes * float64(n)))
			for _, value := range values[:n] {
				c := textPiece{text: value.ByteArray(), in: in, at: *at, begins: true, ends: true}
				at.Offset++
				if len(c.text) > maxLine {
					return fmt.Errorf("row %d has more than %d bytes, the most that is held in memory: shorten it", at.Offset, maxLine)
				}
				if err := r.add(c, *at); err != nil {
					return err
				}
			}
		}
		parquetgo.Release(page)
	}
}

// spool decompresses a parquet file to a file without a name: it must be read at any offset.
func (r *reader) spool(s *stream) (*os.File, int64, error) {
	file, err := os.CreateTemp(r.scratch, ".parquet-")
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

// runeEnd is how much of a text is whole characters.
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

// wordEnd returns how many bytes of a text can be encoded without the rest, or 0 if there are none.
// They end before a space between two letters, or after a newline that precedes a letter and does
// not follow white space. Each tokenizer splits a text there before it merges anything, unless
// joins reports that an added token may contain the bytes on both sides.
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
