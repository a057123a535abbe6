package prepare

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A column is a part of the schema of a file of rows.
type column struct {
	name    string
	path    string    // for messages
	members []*column // of a struct
	element *column   // of a list
	isText  bool      // whether its values are strings of bytes
	isUTF8  bool      // whether the schema says that these are UTF-8
	needed  bool      // whether a field leads to it

	index   int // among the leaves of a parquet file, or the members of a struct of Arrow
	parquet parquetLevels
}

func (c *column) member(name string) (*column, bool) {
	i := slices.IndexFunc(c.members, func(m *column) bool { return m.name == name })
	if i < 0 {
		return nil, false
	}
	return c.members[i], true
}

// paths returns the paths of all columns below c, as --field takes them.
func (c *column) paths(prefix string) (all []string) {
	switch {
	case c.element != nil:
		return c.element.paths(prefix + ".*")
	case c.members == nil:
		return []string{prefix}
	}
	for _, m := range c.members {
		all = append(all, m.paths(strings.TrimPrefix(prefix+"."+m.name, "."))...)
	}
	return all
}

// prune removes all columns but the needed ones and those on the way to them. It reports whether c
// is left.
func (c *column) prune() bool {
	if !c.needed {
		c.members = slices.DeleteFunc(c.members, func(m *column) bool { return !m.prune() })
	}
	return c.needed || len(c.members) > 0
}

// leaves returns the columns below c that have values of their own.
func (c *column) leaves() (all []*column) {
	switch {
	case c.element != nil:
		return c.element.leaves()
	case c.members == nil:
		return []*column{c}
	}
	for _, m := range c.members {
		all = append(all, m.leaves()...)
	}
	return all
}

// rowsAreTexts reports whether a single field leads to the text of each row. Otherwise, rows become
// lines of JSON.
func (e *encoding) rowsAreTexts() bool { return !e.masked && !e.fields[0].inList() }

// selectColumns removes the columns of a schema that the fields do not need: all but those with
// their texts, or with the first list on the way to these.
func (e *encoding) selectColumns(schema *column) error {
	for _, f := range e.fields {
		path := keysOf(schema, f.names(0), (*column).member)
		if path == nil {
			return fmt.Errorf("has no column %s, only %s: choose one with --field or --mask", f, strings.Join(schema.paths(""), ", "))
		}
		c := schema
		for _, name := range path {
			c, _ = c.member(name)
		}
		if e.rowsAreTexts() && !c.isText {
			return fmt.Errorf("column %s does not have one text for each row: choose another one with --field", f)
		}
		c.needed = true
	}
	schema.prune()
	return nil
}

// addRow adds the text of a row, or its JSON, and advances pos. exceeds says that it has more than
// maxLine bytes.
func (r *reader) addRow(in *input, row []byte, exceeds bool, pos *position) error {
	piece := textPiece{text: row, in: in, start: *pos, startsDocument: true, endsDocument: true}
	pos.Offset++
	switch {
	case !exceeds:
		return r.add(piece, *pos)
	case r.skipInvalid:
		r.current.notes.addUnusable(tooLong, location("row", pos.Offset, in))
		return nil
	}
	return fmt.Errorf("row %d has more than %d bytes, which is the limit: shorten it, or leave such rows out with --invalid skip", pos.Offset, maxLine)
}

func (w *encodeWorker) encodeRow(ch *chunk, piece *textPiece) error {
	number := piece.start.Offset + 1
	if !w.rowsAreTexts() {
		if err := w.encodeLine(ch, piece.in, piece.text, "row", number); err != nil {
			return fmt.Errorf("row %d: %w", number, err)
		}
		return nil
	}
	valid, bad := w.toValidUTF8(piece.text)
	switch {
	case w.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, location("row", number, piece.in))
		return nil
	case bad >= 0 && w.replaceInvalid:
		ch.notes.Replaced.add(location("row", number, piece.in))
	case bad >= 0:
		return fmt.Errorf("row %d: not valid UTF-8 at byte %d: use --invalid replace or skip, or --by byte", number, bad)
	}
	return w.encodeDocument(ch, piece.in, []maskedText{{valid, w.fields[0].mask}}, "row", number)
}

// A rowJSON is the JSON of a row, up to maxLine bytes.
type rowJSON struct {
	text    []byte
	exceeds bool // whether it has more
}

func (j *rowJSON) reset() { *j = rowJSON{text: j.text[:0]} }

// literal appends a part of a value as it is.
func (j *rowJSON) literal(part string) {
	j.exceeds = j.exceeds || len(j.text)+len(part) > maxLine
	if !j.exceeds {
		j.text = append(j.text, part...)
	}
}

// bytes appends the value of a column. Bytes that need not be UTF-8, and are not, become an object,
// because they are no text.
func (j *rowJSON) bytes(value []byte, c *column) {
	if c.isUTF8 || utf8.Valid(value) {
		j.string(value)
	} else {
		j.literal(`{"bytes":""}`)
	}
}

// float appends a number. NaN and infinities become 0, as in JSON lines.
func (j *rowJSON) float(value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		value = 0
	}
	j.literal(strconv.FormatFloat(value, 'g', -1, 64))
}

// string appends a string, with invalid UTF-8 as it is.
func (j *rowJSON) string(value []byte) {
	j.exceeds = j.exceeds || len(j.text)+len(value)+2 > maxLine
	if j.exceeds {
		return
	}
	j.text = append(j.text, '"')
	begin := 0
	for i, b := range value {
		if b < ' ' || b == '"' || b == '\\' {
			j.text = append(j.text, value[begin:i]...)
			j.text = fmt.Appendf(j.text, `\u%04x`, b)
			begin = i + 1
		}
	}
	j.text = append(append(j.text, value[begin:]...), '"')
}
