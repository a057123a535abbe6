package rows

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	tokenfile "batchfs/cache/format"
	"batchfs/cmd/batchfs/prepare/input"
)

// readArrow reads the rows of an Arrow stream, beginning with the given one. An Arrow file contains
// a stream after its first 8 bytes.
func (r *Reader) readArrow(s *input.Stream, firstRow int64) (err error) {
	allocator := &arrowAllocator{Allocator: memory.NewGoAllocator(), limit: r.MaxBatch}
	invalid := func(err error) error {
		if allocator.refused > 0 {
			return fmt.Errorf("has a record batch of %d bytes, but the limit is %d: write the file in smaller batches (pyarrow: max_chunksize)",
				allocator.refused, r.MaxBatch)
		}
		return fmt.Errorf("is not a valid Arrow file or stream: %w", err)
	}
	defer func() {
		if p := recover(); p != nil { // arrow-go panics if a file is broken
			err = invalid(fmt.Errorf("%v", p))
		}
	}()
	buffered := bufio.NewReaderSize(s.Reader, 1<<16)
	begin, _ := buffered.Peek(12)
	from, isFile := io.Reader(buffered), bytes.HasPrefix(begin, []byte(tokenfile.ArrowMagic))
	switch {
	case isFile && len(begin) == 12 && binary.LittleEndian.Uint32(begin[8:]) < minArrowSchema:
		s.Reader = buffered
		whole, spooled, err := s.Seekable(r.ScratchDir)
		if err != nil {
			return err
		}
		if spooled {
			defer whole.Close()
		}
		file, size, err := whole.Content()
		if err != nil {
			return err
		}
		if from, err = arrowOfFooter(file, size); err != nil {
			return invalid(err)
		}
		// Peek has read and counted these bytes, which are read again.
		counted := buffered.Buffered()
		if spooled {
			counted = int(s.File.Size())
		}
		r.Count(-counted)
		read, stored := 0, float64(s.File.Size())/float64(size)
		from = io.TeeReader(from, input.CountWriter(func(n int) {
			r.Count(int(stored*float64(read+n)) - int(stored*float64(read)))
			read += n
		}))
	case isFile:
		buffered.Discard(8)
	case bytes.HasPrefix(begin, []byte(tokenfile.FeatherMagic)):
		return errors.New("is a Feather file of version 1: write it again with pyarrow.feather.write_feather")
	}
	in := &endReader{Reader: newArrowChecker(from)}
	messages := ipc.NewMessageReader(in, ipc.WithAllocator(allocator))
	batches, err := ipc.NewReaderFromMessageReader(messages, ipc.WithAllocator(allocator))
	if err != nil {
		return invalid(err)
	}
	defer batches.Release()
	schema := newArrowColumn(0, arrow.Field{Type: arrow.StructOf(batches.Schema().Fields()...)})
	if err := r.Columns.choose(schema); err != nil {
		return err
	}
	rows := &arrowReader{reader: r, schema: schema, next: firstRow, row: rowJSON{limit: r.MaxRow}}
	first := int64(0)
	for batches.Next() {
		batch := batches.RecordBatch()
		if err := rows.readBatch(batch, max(0, firstRow-first)); err != nil {
			return err
		}
		first += batch.NumRows()
	}
	if err := batches.Err(); err != nil {
		return invalid(err)
	}
	if in.ended {
		return invalid(errTruncatedArrow)
	}
	rest, err := io.Copy(io.Discard, in)
	if err == nil && rest > 0 && !isFile {
		err = errors.New("has bytes after the end of its Arrow stream: if it consists of several streams, save each to a file of its own")
	}
	return err
}

var errTruncatedArrow = errors.New("it has no end; copy or download it again, or write it again with pyarrow")

// minArrowSchema and maxArrowSchema limit the size of a schema, and of the metadata of a batch, in
// bytes.
const (
	minArrowSchema = 8
	maxArrowSchema = 256 << 20
)

// arrowOfFooter returns a stream of the messages of an Arrow file, which its footer lists. They
// cannot be read in the order of the file, because polars writes no length before the schema, and
// writes dictionaries after the batches that need them.
func arrowOfFooter(file io.ReaderAt, size int64) (io.Reader, error) {
	const (
		magic     = "ARROW1"
		endSize   = int64(4 + len(magic)) // bytes of the length of the footer, and of magic
		blockSize = 24                    // bytes of the offset of a message and its two lengths
	)
	end := make([]byte, endSize)
	if _, err := file.ReadAt(end, max(0, size-endSize)); err != nil || string(end[4:]) != magic {
		return nil, errTruncatedArrow
	}
	length := int64(binary.LittleEndian.Uint32(end))
	schemaEnd := size - endSize - length
	if length < minArrowSchema || length > maxArrowSchema || schemaEnd < 0 {
		return nil, fmt.Errorf("its footer has %d bytes", length)
	}
	raw := make([]byte, length)
	if _, err := file.ReadAt(raw, schemaEnd); err != nil {
		return nil, err
	}
	footer := &flatbuffers.Table{Bytes: raw, Pos: flatbuffers.GetUOffsetT(raw)}
	var messages []io.Reader
	for _, slot := range []flatbuffers.VOffsetT{8, 10} { // dictionaries and record batches
		at := flatbuffers.UOffsetT(footer.Offset(slot))
		if at == 0 {
			continue
		}
		for i := range footer.VectorLen(at) {
			block := footer.Vector(at) + flatbuffers.UOffsetT(blockSize*i)
			offset := footer.GetInt64(block)
			messages = append(messages, io.NewSectionReader(file, offset, int64(footer.GetInt32(block+8))+footer.GetInt64(block+16)))
			schemaEnd = min(schemaEnd, offset)
		}
	}
	begin := int64(len(tokenfile.ArrowMagic))
	if schemaEnd-begin > maxArrowSchema {
		return nil, fmt.Errorf("its schema has %d bytes", schemaEnd-begin)
	}
	header := binary.LittleEndian.AppendUint32([]byte("\xff\xff\xff\xff"), uint32(max(0, schemaEnd-begin)))
	messages = append([]io.Reader{bytes.NewReader(header), io.NewSectionReader(file, begin, schemaEnd-begin)}, messages...)
	return io.MultiReader(append(messages, strings.NewReader("\xff\xff\xff\xff\x00\x00\x00\x00"))...), nil
}

// An arrowChecker reads a stream, and checks each message before arrow-go gets it, which trusts the
// numbers in it when it allocates memory. Read panics if an offset is wrong; arrow-go recovers.
type arrowChecker struct {
	in      io.Reader
	message io.Reader // the current message, with its body
}

func newArrowChecker(in io.Reader) *arrowChecker {
	return &arrowChecker{in, strings.NewReader("")}
}

func (c *arrowChecker) Read(buf []byte) (int, error) {
	n, err := c.message.Read(buf)
	if n > 0 || err != io.EOF || len(buf) == 0 {
		return n, err
	}
	next, err := c.nextMessage()
	if err != nil {
		return 0, err
	}
	c.message = next
	return next.Read(buf)
}

// nextMessage returns the next message. If there is none, it returns the rest of the input.
func (c *arrowChecker) nextMessage() (io.Reader, error) {
	prefix := make([]byte, 4)
	_, err := io.ReadFull(c.in, prefix)
	if string(prefix) == "\xff\xff\xff\xff" { // Arrow 0.15 and later write this before the length
		prefix = append(prefix, 0, 0, 0, 0)
		_, err = io.ReadFull(c.in, prefix[4:])
	}
	length := int64(binary.LittleEndian.Uint32(prefix[len(prefix)-4:]))
	switch {
	case err != nil:
		return nil, err
	case length == 0:
		return io.MultiReader(bytes.NewReader(prefix), c.in), nil
	case length < minArrowSchema || length > maxArrowSchema:
		return nil, fmt.Errorf("it has a message of %d bytes", length)
	}
	metadata, err := io.ReadAll(io.LimitReader(c.in, length))
	if err == nil && int64(len(metadata)) < length {
		err = errTruncatedArrow
	}
	if err != nil {
		return nil, err
	}
	message := &flatbuffers.Table{Bytes: metadata, Pos: flatbuffers.GetUOffsetT(metadata)}
	if err := checkArrowMessage(message); err != nil {
		return nil, err
	}
	const bodySizeSlot = 10
	body := io.LimitReader(c.in, message.GetInt64Slot(bodySizeSlot, 0))
	return io.MultiReader(bytes.NewReader(prefix), bytes.NewReader(metadata), body), nil
}

func checkArrowMessage(message *flatbuffers.Table) error {
	const typeSlot, headerSlot, schema, dictionaryBatch, recordBatch = 6, 8, 1, 2, 3
	header := tableIn(message, headerSlot)
	if header == nil {
		return nil
	}
	switch message.GetByteSlot(typeSlot, 0) {
	case schema:
		limit := len(message.Bytes)
		checkArrowFields(header, 6, 8, &limit)
	case dictionaryBatch:
		if batch := tableIn(header, 6); batch != nil {
			return checkArrowBatch(batch)
		}
	case recordBatch:
		return checkArrowBatch(header)
	}
	return nil
}

// tableIn returns the table in a slot of another one, or nil if there is none.
func tableIn(table *flatbuffers.Table, slot flatbuffers.VOffsetT) *flatbuffers.Table {
	at := flatbuffers.UOffsetT(table.Offset(slot))
	if at == 0 {
		return nil
	}
	return &flatbuffers.Table{Bytes: table.Bytes, Pos: table.Indirect(table.Pos + at)}
}

// checkArrowBatch returns an error if a column of strings or bytes in views has more buffers than
// the whole record batch.
func checkArrowBatch(batch *flatbuffers.Table) error {
	const buffersSlot, viewBuffersSlot = 8, 12
	all := 0
	if at := flatbuffers.UOffsetT(batch.Offset(buffersSlot)); at > 0 {
		all = batch.VectorLen(at)
	}
	at := flatbuffers.UOffsetT(batch.Offset(viewBuffersSlot))
	if at == 0 {
		return nil
	}
	for i := range batch.VectorLen(at) {
		if n := batch.GetInt64(batch.Vector(at) + flatbuffers.UOffsetT(8*i)); n < 0 || n > int64(all) {
			return fmt.Errorf("it has a column of %d buffers in a record batch of %d", n, all)
		}
	}
	return nil
}

// checkArrowFields panics if a table has too many columns and metadata. The slots are those of its
// lists of columns and of metadata. limit is the number of elements that such lists may have in the
// rest of the schema; checkArrowFields subtracts those of the table and of all columns below it.
func checkArrowFields(table *flatbuffers.Table, columns, metadata flatbuffers.VOffsetT, limit *int) {
	length := func(slot flatbuffers.VOffsetT) (at flatbuffers.UOffsetT, n int) {
		if at = flatbuffers.UOffsetT(table.Offset(slot)); at > 0 {
			n = table.VectorLen(at)
		}
		if *limit -= n; n < 0 || *limit < 0 {
			panic("its schema is broken")
		}
		return at, n
	}
	length(metadata)
	at, n := length(columns)
	for i := range n {
		field := &flatbuffers.Table{Bytes: table.Bytes, Pos: table.Indirect(table.Vector(at) + flatbuffers.UOffsetT(4*i))}
		checkArrowFields(field, 14, 16, limit)
	}
}

// An endReader records whether its end was reached. In a complete stream, arrow-go stops before, at
// a mark.
type endReader struct {
	io.Reader
	ended bool
}

func (e *endReader) Read(buf []byte) (int, error) {
	n, err := e.Reader.Read(buf)
	e.ended = e.ended || err == io.EOF
	return n, err
}

// An arrowAllocator refuses to allocate more than limit bytes at a time, because arrow-go trusts
// the sizes in a file.
type arrowAllocator struct {
	memory.Allocator
	limit   int
	refused int // size in bytes of an allocation that was refused, or 0
}

func (a *arrowAllocator) Allocate(size int) []byte {
	a.check(size)
	return a.Allocator.Allocate(size)
}

func (a *arrowAllocator) Reallocate(size int, b []byte) []byte {
	a.check(size)
	return a.Allocator.Reallocate(size, b)
}

// check panics if size is refused. arrow-go or readArrow recovers from that.
func (a *arrowAllocator) check(size int) {
	if size < 0 || size > a.limit {
		a.refused = size
		panic("too large")
	}
}

// newArrowColumn returns the tree of the column with an index.
func newArrowColumn(index int, f arrow.Field) *column {
	c := &column{name: f.Name, path: f.Name, index: index}
	t := f.Type
	if d, ok := t.(*arrow.DictionaryType); ok {
		t = d.ValueType
	}
	switch t := t.(type) {
	case *arrow.StructType:
		c.members = []*column{}
		for i, member := range t.Fields() {
			c.members = append(c.members, newArrowColumn(i, member))
		}
	case arrow.ListLikeType:
		c.element = newArrowColumn(0, t.ElemField())
	case *arrow.StringType, *arrow.LargeStringType, *arrow.StringViewType:
		c.isText, c.isUTF8 = true, true
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type,
		*arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type:
		c.isInteger = true
	case *arrow.BinaryType, *arrow.LargeBinaryType, *arrow.BinaryViewType:
		c.isText = true
	}
	return c
}

// An arrowReader reads rows of record batches.
type arrowReader struct {
	reader *Reader
	schema *column // the columns that are read
	next   int64   // number of the next row
	row    rowJSON
}

// readBatch adds the rows of a record batch from a row on.
func (a *arrowReader) readBatch(batch arrow.RecordBatch, from int64) error {
	columns := array.RecordToStructArray(batch)
	defer columns.Release()
	for i := from; i < batch.NumRows(); i++ {
		var text []byte
		if a.reader.Columns.AreTexts() {
			text = arrowText(a.schema, columns, int(i))
			a.row.exceeds = len(text) > a.reader.MaxRow
		} else {
			a.row.reset()
			a.row.appendArrow(a.schema, columns, int(i))
			text = a.row.text
		}
		if err := a.reader.Add(a.next, text, a.row.exceeds); err != nil {
			return err
		}
		a.next++
	}
	return nil
}

// arrowText returns the text in element i of an array whose column has a single leaf.
func arrowText(c *column, values arrow.Array, i int) []byte {
	values, i = arrowElement(values, i)
	switch values := values.(type) {
	case nil:
		return nil
	case *array.Struct:
		return arrowText(c.members[0], values.Field(c.members[0].index), i)
	case interface{ Value(int) string }:
		return []byte(values.Value(i))
	}
	return values.(interface{ Value(int) []byte }).Value(i)
}

// arrowElement returns the array and index in which element i of an array is stored, or nil if the
// element is null.
func arrowElement(values arrow.Array, i int) (arrow.Array, int) {
	for {
		if values.IsNull(i) {
			return nil, 0
		}
		dictionary, ok := values.(*array.Dictionary)
		if !ok {
			return values, i
		}
		values, i = dictionary.Dictionary(), dictionary.GetValueIndex(i)
	}
}

// appendArrow appends the JSON of element i of an array.
func (j *rowJSON) appendArrow(c *column, values arrow.Array, i int) {
	values, i = arrowElement(values, i)
	switch values := values.(type) {
	case nil, *array.Null:
		j.null(c)
	case *array.Struct:
		separator := "{"
		for _, m := range c.members {
			j.literal(separator)
			j.string([]byte(m.name))
			j.literal(":")
			j.appendArrow(m, values.Field(m.index), i)
			separator = ","
		}
		if separator == "{" {
			j.literal("{")
		}
		j.literal("}")
	case array.ListLike:
		start, end := values.ValueOffsets(i)
		j.literal("[")
		for at := start; at < end; at++ {
			if at > start {
				j.literal(",")
			}
			j.appendArrow(c.element, values.ListValues(), int(at))
		}
		j.literal("]")
	case *array.Float32:
		j.float(float64(values.Value(i)))
	case *array.Float64:
		j.float(values.Value(i))
	case *array.Int8:
		j.integer(int64(values.Value(i)))
	case *array.Int32:
		j.integer(int64(values.Value(i)))
	case *array.Int64:
		j.integer(values.Value(i))
	case *array.Boolean, *array.Int16, *array.Uint8, *array.Uint16, *array.Uint32, *array.Uint64:
		j.literal(values.ValueStr(i))
	case interface{ Value(int) string }:
		j.bytes([]byte(values.Value(i)), c)
	case interface{ Value(int) []byte }:
		j.bytes(values.Value(i), c)
	default:
		j.string([]byte(values.ValueStr(i)))
	}
}
