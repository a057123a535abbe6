package field

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// These fields may stand next to the one that --ids names. Tokenizers and data collators of Hugging
// Face write them.
const (
	Attention = "attention_mask"
	Labels    = "labels"
)

// An IDRow has the ids of a document, and the fields next to them, as JSON.
type IDRow struct {
	IDs               jsontext.Value
	Attention, Labels jsontext.Value // nil if there are none
}

// IDRow returns the ids to which a field leads in a line. The path must not lead through a list.
func (f Field) IDRow(line jsontext.Value) (IDRow, error) {
	return readField(f, line, Field.idRowIn)
}

func (f Field) idRowIn(line jsontext.Value) (row IDRow, err error) {
	last := len(f.path) - 1
	parent := f
	parent.path = f.path[:last]
	in, err := parent.valueIn(line)
	if err != nil {
		return IDRow{}, err
	}
	row.IDs, err = f.follow(in, last, func(name []byte, value jsontext.Value) {
		switch {
		case value.Kind() == jsontext.KindNull:
		case string(name) == Attention:
			row.Attention = value
		case string(name) == Labels:
			row.Labels = value
		}
	})
	return row, err
}

// AppendIntegers appends the elements of a list to which the field of that name leads. false and
// true are 0 and 1; null is an empty list.
func AppendIntegers(to []int64, list jsontext.Value, name string) ([]int64, error) {
	wrong := func(details string) error {
		return Unusable(fmt.Sprintf("field %s is not a list of integers", name), details)
	}
	switch list.Kind() {
	case jsontext.KindNull:
		return to, nil
	case jsontext.KindBeginArray:
	default:
		return to, wrong(" but " + describe(list))
	}
	for rest, i := bytes.TrimSpace(list[1:len(list)-1]), 0; len(rest) > 0; i++ {
		var element []byte
		element, rest, _ = bytes.Cut(rest, []byte(","))
		element = bytes.TrimSpace(element)
		n, err := strconv.ParseInt(string(element), 10, 64)
		switch {
		case err == nil, string(element) == "false":
		case string(element) == "true":
			n = 1
		case jsontext.Value(element).Kind() == jsontext.KindNumber:
			return to, wrong(fmt.Sprintf(": element %d is %s", i, element))
		default:
			return to, wrong(fmt.Sprintf(": element %d is %s", i, describe(element)))
		}
		to = append(to, n)
	}
	return to, nil
}
