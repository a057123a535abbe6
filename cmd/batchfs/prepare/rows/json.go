package rows

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// A rowJSON is the JSON of a row, up to a number of bytes.
type rowJSON struct {
	limit   int
	text    []byte
	exceeds bool // whether the row has more bytes than that
}

func (j *rowJSON) reset() { *j = rowJSON{limit: j.limit, text: j.text[:0]} }

// literal appends text without quotes or escapes.
func (j *rowJSON) literal(part string) {
	j.exceeds = j.exceeds || len(j.text)+len(part) > j.limit
	if !j.exceeds {
		j.text = append(j.text, part...)
	}
}

// null appends a value that is null. If it is a struct on the way to a field, its members are null.
func (j *rowJSON) null(c *column) {
	if c.needed {
		j.literal("null")
		return
	}
	separator := "{"
	for _, m := range c.members {
		j.literal(separator)
		j.string([]byte(m.name))
		j.literal(":")
		j.null(m)
		separator = ","
	}
	j.literal("}")
}

func (j *rowJSON) integer(value int64) {
	j.exceeds = j.exceeds || len(j.text)+len("-9223372036854775808") > j.limit
	if !j.exceeds {
		j.text = strconv.AppendInt(j.text, value, 10)
	}
}

// bytes appends the value of a column of bytes as a string. If they are not UTF-8, and the schema
// does not say that they are, they become an object, which is no text.
func (j *rowJSON) bytes(value []byte, c *column) {
	if c.isUTF8 || utf8.Valid(value) {
		j.string(value)
	} else {
		j.literal(`{"bytes":""}`)
	}
}

// float appends a number. NaN and infinities become null, as in JSON lines.
func (j *rowJSON) float(value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		j.literal("null")
	} else {
		j.literal(strconv.FormatFloat(value, 'g', -1, 64))
	}
}

// string appends a string, with invalid UTF-8 as it is.
func (j *rowJSON) string(value []byte) {
	j.exceeds = j.exceeds || len(j.text)+len(value)+2 > j.limit
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
