// Package rows reads rows of Parquet and Arrow files: from each row its text or, if [Columns] need
// more than that, a line of JSON with the values that are needed.
//
// A [Reader] checks what the libraries would trust, such as sizes for which they allocate memory,
// and limits the memory that a file may need.
package rows

import (
	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
)

// A Reader reads the rows of files. It belongs to one goroutine.
type Reader struct {
	Columns    Columns
	ScratchDir string // directory for spooled files; empty for the default

	MaxRow        int   // most bytes of a text or a line of JSON
	MaxBatch      int   // most bytes of a stored record batch, and of a decompressed buffer
	MaxPageValues int64 // most values of a page of Parquet

	Count func(n int) // receives the size of each read, in bytes as stored
	// Add receives the number of each row, from 0, and its text or line of JSON, which is valid
	// until Add returns. exceeds says that it has more than MaxRow bytes; JSON is cut off then.
	Add func(row int64, text []byte, exceeds bool) error
}

// Columns say what is read from each row.
type Columns struct {
	Fields  []field.Field
	ID      *field.Field // leads to the id of a document; nil if it has none
	IDs     bool         // whether the first field leads to lists of ids instead of texts
	OneText bool         // whether a single field leads to the text of each row
}

// AreTexts reports whether nothing but a text is read from each row. Otherwise, rows become lines
// of JSON.
func (cs Columns) AreTexts() bool { return cs.OneText && cs.ID == nil }

// Read reads the rows of a stream, or of the part that its file is restricted to, beginning with
// row from.
func (r *Reader) Read(s *input.Stream, from int64) error {
	if s.File.Format == input.Arrow {
		return r.readArrow(s, from)
	}
	return r.readParquet(s, from)
}
