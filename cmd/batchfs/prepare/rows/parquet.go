package rows

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	parquetgo "github.com/parquet-go/parquet-go"
	parquetformat "github.com/parquet-go/parquet-go/format"

	"batchfs/cmd/batchfs/prepare/input"
)

// readParquet reads the rows of a parquet file, beginning with the given one.
func (r *Reader) readParquet(s *input.Stream, firstRow int64) (err error) {
	defer recoverBroken(&err)
	from, spooled, err := s.Seekable(r.ScratchDir)
	if err != nil {
		return err
	}
	if spooled {
		defer from.Close()
	}
	file, f, err := openParquet(from)
	if err != nil {
		return err
	}
	schema := new(column)
	schema.fill(f.Root())
	if err := r.Columns.choose(schema); err != nil {
		return err
	}
	size := f.Size()
	if spooled { // spooling has counted all bytes
		size = s.File.Size()
		r.Count(-int(size))
	}
	p := &parquetReader{reader: r, schema: schema, nextRow: firstRow, rowBytes: float64(size) / float64(max(1, f.NumRows())), row: rowJSON{limit: r.MaxRow}}
	r.Count(p.bytesBefore(firstRow))
	row := int64(0)
	for i, group := range f.RowGroups() {
		if part := s.File.Part; part != nil && (int64(i) < part.Begin || int64(i) >= part.End) {
			p.nextRow = max(p.nextRow, row+group.NumRows())
		}
		if row+group.NumRows() > p.nextRow {
			p.leaves = make([]*parquetLeaf, len(group.ColumnChunks()))
			for _, c := range schema.leaves() {
				values := newColumnReader(file, &f.Metadata().RowGroups[i].Columns[c.index].MetaData, r.MaxPageValues)
				p.leaves[c.index] = &parquetLeaf{column: values, pages: group.ColumnChunks()[c.index].(*parquetgo.FileColumnChunk).PagesFrom(values)}
			}
			err := p.readGroup(row, group.NumRows())
			for _, c := range schema.leaves() {
				p.leaves[c.index].close()
			}
			if err != nil {
				return err
			}
		}
		row += group.NumRows()
	}
	return nil
}

// recoverBroken, when deferred, sets err instead of panicking, because parquet-go panics if a file
// is broken.
func recoverBroken(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("is not a valid parquet file: %v", p)
	}
}

// openParquet opens the content of s as a parquet file.
func openParquet(s *input.Stream) (file io.ReaderAt, f *parquetgo.File, err error) {
	file, size, err := s.Content()
	if err != nil {
		return nil, nil, err
	}
	f, err = parquetgo.OpenFile(file, size, parquetgo.SkipPageIndex(true), parquetgo.SkipBloomFilters(true))
	if err != nil && !s.File.InStore() {
		err = fmt.Errorf("cannot be read as Parquet: %w; if it is not complete, copy or download it again", err)
	}
	return file, f, err
}

// GroupSizes returns the size of each row group of a parquet file in bytes, as stored.
func GroupSizes(in *input.File) (sizes []int64, err error) {
	defer recoverBroken(&err)
	s, err := in.OpenStored()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	_, f, err := openParquet(s)
	if err != nil {
		return nil, err
	}
	for _, group := range f.Metadata().RowGroups {
		size := int64(0)
		for _, c := range group.Columns {
			size += c.MetaData.TotalCompressedSize
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// A parquetReader reads rows of a parquet file.
type parquetReader struct {
	reader   *Reader
	schema   *column        // the columns that are read
	nextRow  int64          // number of the next row to add
	rowBytes float64        // average size of a row on disk
	leaves   []*parquetLeaf // of the current row group; nil for those that are not read
	row      rowJSON
}

// bytesBefore returns an estimate of the number of bytes on disk before a row. The difference for
// two adjacent rows may be 0.
func (p *parquetReader) bytesBefore(row int64) int { return int(p.rowBytes * float64(row)) }

// readGroup adds the rows of a row group, beginning with p.nextRow. first is the number of the
// first row of the group.
func (p *parquetReader) readGroup(first, rows int64) error {
	leaves := p.schema.leaves()
	row, end := first, first+rows
	if p.reader.Columns.AreTexts() { // otherwise, pages may begin within a row
		row = max(first, p.nextRow)
		if err := p.leaves[leaves[0].index].pages.SeekToRow(row - first); err != nil {
			return err
		}
	}
	for ; row < end; row++ {
		var text []byte
		if p.reader.Columns.AreTexts() {
			text = p.next(leaves[0], 0).ByteArray()
			p.row.exceeds = len(text) > p.reader.MaxRow
		} else {
			p.row.reset()
			p.appendValue(p.schema, 0)
			text = p.row.text
		}
		for _, c := range leaves {
			if leaf := p.leaves[c.index]; leaf.err != nil && leaf.err != io.EOF {
				return fmt.Errorf("column %s %w", c.path, leaf.err)
			}
		}
		if row < p.nextRow {
			continue
		}
		p.reader.Count(p.bytesBefore(row+1) - p.bytesBefore(row))
		if err := p.reader.Add(row, text, p.row.exceeds); err != nil {
			return err
		}
		p.nextRow++
	}
	return nil
}

// parquetLevels has levels of a column, which are read from the first leaf below it. A definition
// level that is at least value, for example, means that the column has a value.
type parquetLevels struct {
	optional   bool
	value      int // definition level of a value that is not null
	elements   int // definition level of a list that has elements
	repetition int // repetition level of all elements of a list but the first
}

// newParquetColumn returns the tree of a column. In this tree, lists have elements instead of the
// groups with which Parquet represents them.
func newParquetColumn(c *parquetgo.Column) *column {
	to := &column{name: c.Name(), path: strings.Join(c.Path(), ".")}
	if c.Repeated() { // without a group around it
		to.setElements(c, new(column))
		to.element.path = to.path
		to.element.fill(c)
		return to
	}
	to.parquet.optional, to.parquet.value = c.Optional(), c.MaxDefinitionLevel()
	to.fill(c)
	return to
}

func (c *column) setElements(repeated *parquetgo.Column, element *column) {
	c.element, c.parquet.elements, c.parquet.repetition = element, repeated.MaxDefinitionLevel(), repeated.MaxRepetitionLevel()
}

// fill sets the members, the elements or the type of a column, but does not look at whether the
// column itself is repeated.
func (c *column) fill(from *parquetgo.Column) {
	var logical parquetformat.LogicalTypeValue
	if t := from.Type().LogicalType(); t != nil {
		logical = t.Value
	}
	_, isList := logical.(*parquetformat.ListType)
	_, isMap := logical.(*parquetformat.MapType)
	inner := from.Columns()
	switch {
	case from.Leaf():
		c.index = from.Index()
		c.isText = from.Type().Kind() == parquetgo.ByteArray
		_, c.isUTF8 = logical.(*parquetformat.StringType)
		integer, isInt := logical.(*parquetformat.IntType)
		kind := from.Type().Kind()
		isWhole := kind == parquetgo.Int32 || kind == parquetgo.Int64
		c.isInteger = isWhole && (isInt || logical == nil)
		c.isUnsigned = isInt && !integer.IsSigned
		switch t := logical.(type) {
		case *parquetformat.DecimalType:
			if !isWhole || t.Scale != 0 {
				c.unreadable = "decimals"
			}
		case *parquetformat.UUIDType:
			c.unreadable = "UUIDs"
		}
	case (isList || isMap) && len(inner) == 1 && inner[0].Repeated():
		repeated := inner[0]
		// Old programs wrote lists whose repeated column is the element itself.
		isElement := len(repeated.Columns()) != 1 || repeated.Name() == "array" || strings.HasSuffix(repeated.Name(), "_tuple")
		if isList && !isElement {
			c.setElements(repeated, newParquetColumn(repeated.Columns()[0]))
			return
		}
		c.setElements(repeated, &column{path: strings.Join(repeated.Path(), ".")})
		c.element.fill(repeated)
	default:
		c.members = make([]*column, 0, len(inner))
		for _, member := range inner {
			if m := newParquetColumn(member); len(m.leaves()) > 0 {
				c.members = append(c.members, m)
			}
		}
	}
}

// first returns the first leaf below a column.
func (c *column) first() *column {
	for {
		switch {
		case c.element != nil:
			c = c.element
		case len(c.members) > 0:
			c = c.members[0]
		default:
			return c
		}
	}
}

// appendValue appends the next value of a column, whose repetition level is given, to the row.
func (p *parquetReader) appendValue(c *column, repetition int) {
	first := p.leaves[c.first().index]
	switch {
	case c.parquet.optional && first.peek().DefinitionLevel() < c.parquet.value:
		p.row.null(c)
		p.skip(c, repetition)
	case c.element != nil && first.peek().DefinitionLevel() < c.parquet.elements:
		p.row.literal("[]")
		p.skip(c, repetition)
	case c.element != nil:
		p.row.literal("[")
		p.appendValue(c.element, repetition)
		for first.peek().RepetitionLevel() == c.parquet.repetition {
			p.row.literal(",")
			p.appendValue(c.element, c.parquet.repetition)
		}
		p.row.literal("]")
	case c.members != nil:
		separator := "{"
		for _, m := range c.members {
			p.row.literal(separator)
			p.row.string([]byte(m.name))
			p.row.literal(":")
			p.appendValue(m, repetition)
			separator = ","
		}
		p.row.literal("}")
	default:
		p.appendLeaf(c, p.next(c, repetition))
	}
}

func (p *parquetReader) appendLeaf(c *column, v parquetgo.Value) {
	switch v.Kind() {
	case parquetgo.ByteArray, parquetgo.FixedLenByteArray:
		p.row.bytes(v.ByteArray(), c)
	case parquetgo.Boolean:
		p.row.literal(v.String())
	case parquetgo.Int32:
		if c.isUnsigned {
			p.row.integer(int64(v.Uint32()))
		} else {
			p.row.integer(int64(v.Int32()))
		}
	case parquetgo.Int64:
		if c.isUnsigned {
			p.row.literal(strconv.FormatUint(v.Uint64(), 10))
		} else {
			p.row.integer(v.Int64())
		}
	case parquetgo.Float:
		p.row.float(float64(v.Float()))
	case parquetgo.Double:
		p.row.float(v.Double())
	default:
		p.row.string([]byte(v.String()))
	}
}

// skip passes over a value that is null, or over an empty list.
func (p *parquetReader) skip(c *column, repetition int) {
	for _, leaf := range c.leaves() {
		p.next(leaf, repetition)
	}
}

// next returns the next value of a leaf, which must have this repetition level.
func (p *parquetReader) next(c *column, repetition int) parquetgo.Value {
	leaf := p.leaves[c.index]
	v := leaf.peek()
	switch {
	case leaf.err == io.EOF:
		leaf.err = errors.New("has fewer values than rows")
	case leaf.err == nil && v.RepetitionLevel() != repetition:
		leaf.err = errors.New("has broken repetition levels")
	}
	leaf.at++
	return v
}

// A parquetLeaf reads the values of a column that has no columns below it.
type parquetLeaf struct {
	column *columnReader
	pages  parquetgo.Pages
	page   parquetgo.Page // nil before the first page and after an error
	from   parquetgo.ValueReader
	buf    [256]parquetgo.Value
	at, n  int   // the values buf[at:n] are still to be returned
	err    error // why there are no more values; io.EOF at the end
}

// peek returns the next value without passing over it, or a zero value if there are no more.
func (l *parquetLeaf) peek() parquetgo.Value {
	for l.at >= l.n && l.err == nil {
		l.fill()
	}
	if l.err != nil {
		return parquetgo.Value{}
	}
	return l.buf[l.at]
}

// fill reads more values, or a page for them.
func (l *parquetLeaf) fill() {
	if l.from == nil {
		parquetgo.Release(l.page)
		if l.page, l.err = l.pages.ReadPage(); l.err != nil {
			l.page = nil
			l.err = cmp.Or(l.column.err, l.err)
			return
		}
		l.from = l.page.Values()
	}
	var err error
	l.at = 0
	l.n, err = l.from.ReadValues(l.buf[:])
	if err == io.EOF {
		l.from = nil
	} else {
		l.err = err
	}
}

func (l *parquetLeaf) close() {
	parquetgo.Release(l.page)
	l.pages.Close()
}
