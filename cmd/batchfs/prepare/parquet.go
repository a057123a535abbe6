package prepare

import (
	"fmt"
	"io"
	"os"
	"strings"

	parquetgo "github.com/parquet-go/parquet-go"
)

// readRows reads a column of a parquet file, one document for each row.
func (r *reader) readRows(s *stream, pos position) (err error) {
	defer func() {
		if p := recover(); p != nil { // parquet-go panics if a file is broken
			err = fmt.Errorf("is not a valid parquet file: %v", p)
		}
	}()
	file, size := s.file, s.in.size()
	if file == nil || s.in.readableOnce() || s.decompressor != nil {
		if file, size, err = r.spool(s); err != nil {
			return err
		}
		defer file.Close()
	}
	f, err := parquetgo.OpenFile(file, size, parquetgo.SkipPageIndex(true), parquetgo.SkipBloomFilters(true))
	if err != nil {
		return err
	}
	name := r.fields[0].String()
	column, err := textColumn(f, r.fields[0])
	if err != nil {
		return err
	}
	rowBytes := float64(s.in.size()) / float64(f.NumRows())
	if s.decompressor != nil {
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

func textColumn(f *parquetgo.File, name field) (int, error) {
	path := keysOf(f.Root(), name.names(0), func(c *parquetgo.Column, name string) (*parquetgo.Column, bool) {
		inner := c.Column(name)
		return inner, inner != nil
	})
	column, ok := f.Schema().Lookup(path...)
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
				if len(piece.text) > maxLine && r.skipInvalid {
					r.current.notes.addUnusable(tooLong, location("row", pos.Offset, in))
					continue
				}
				if len(piece.text) > maxLine {
					return fmt.Errorf("row %d has more than %d bytes, which is the limit: shorten it, or leave such rows out with --invalid skip", pos.Offset, maxLine)
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

func (w *encodeWorker) encodeRow(ch *chunk, piece *textPiece) error {
	valid, bad := w.toValidUTF8(piece.text)
	switch {
	case w.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, location("row", piece.start.Offset+1, piece.in))
		return nil
	case bad >= 0 && w.replaceInvalid:
		ch.notes.Replaced.add(location("row", piece.start.Offset+1, piece.in))
	case bad >= 0:
		return fmt.Errorf("row %d: not valid UTF-8 at byte %d: use --invalid replace or skip, or --by byte", piece.start.Offset+1, bad)
	}
	return w.encodeDocument(ch, piece.in, []maskedText{{valid, w.fields[0].mask}}, "row", piece.start.Offset+1)
}
