package prepare

import (
	"fmt"

	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/rows"
)

// Limits on memory. They are variables so that tests can lower them.
var (
	// maxArrowBuffer limits a record batch as it is stored, and each buffer that is decompressed,
	// in bytes.
	maxArrowBuffer = 2 << 30

	// maxPageValues limits the values of a page of Parquet, because parquet-go needs 8 more bytes
	// for each. The size of a page has no limit but that of the format, 2 GiB: pyarrow looks at it
	// only once in 1,024 rows.
	maxPageValues int64 = 32 << 20
)

// readRows reads rows, each of which is a document.
func (r *reader) readRows(s *input.Stream, pos position) error {
	all := rows.Reader{Columns: r.encoding.columns(), ScratchDir: r.scratchDir, MaxRow: maxLine, MaxBatch: maxArrowBuffer,
		MaxPageValues: maxPageValues, Count: r.countBytes}
	all.Add = func(row int64, text []byte, exceeds bool) error {
		pos.Offset = row
		return r.addRow(s.File, text, exceeds, &pos)
	}
	return all.Read(s, pos.Offset)
}

// addRow adds the text of a row, or its JSON, and advances pos. exceeds says that it has more than
// maxLine bytes.
func (r *reader) addRow(in *input.File, row []byte, exceeds bool, pos *position) error {
	piece := textPiece{text: row, in: in, start: *pos, startsDocument: true, endsDocument: true}
	pos.Offset++
	switch {
	case !exceeds:
		return r.add(piece, *pos)
	case r.encoding.skipInvalid:
		r.countTooLong(in, place{"row", pos.Offset})
		return nil
	}
	return fmt.Errorf("row %d has more than %d bytes, which is the limit: shorten it, or let prepare leave such rows out with --invalid skip", pos.Offset, maxLine)
}
