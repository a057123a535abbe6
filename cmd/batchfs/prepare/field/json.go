package field

import (
	"bytes"
	"cmp"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// unquote appends the content of a JSON string. Invalid UTF-8 and unpaired surrogates become
// U+FFFD.
func unquote(to []byte, value jsontext.Value) []byte {
	to, _ = jsontext.AppendUnquote(to, value) // the error only reports that something became U+FFFD
	return to
}

// literal returns a value in the form that conditions have: a string has no quotes.
func literal(value jsontext.Value) []byte {
	if value.Kind() == jsontext.KindString {
		value, _ = jsontext.AppendUnquote(nil, value)
	}
	return value
}

// elements returns the elements of a list, or none for null.
func elements(value jsontext.Value) (all []jsontext.Value, err error) {
	switch value.Kind() {
	case jsontext.KindNull:
		return nil, nil
	case jsontext.KindBeginArray:
	default:
		return nil, errors.New("is not a list")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(value), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	d.ReadToken()
	for d.PeekKind() != jsontext.KindEndArray {
		next, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		end := d.InputOffset()
		all = append(all, value[end-int64(len(next)):end])
	}
	d.ReadToken()
	return all, checkEnd(d)
}

// checkEnd returns an error if more follows the value that a decoder has read.
func checkEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); err != io.EOF {
		return cmp.Or(err, errors.New("found more text after it"))
	}
	return nil
}

// member parses a whole object, and returns its last member with this name, or nil. It calls other,
// unless it is nil, with each other member.
func member(object jsontext.Value, name string, other func(name []byte, value jsontext.Value)) (
	value jsontext.Value, err error,
) {
	d := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if begin, err := d.ReadToken(); err != nil || begin.Kind() != jsontext.KindBeginObject {
		return nil, cmp.Or(err, errors.New("found another kind of value"))
	}
	var another []byte
	for d.PeekKind() != jsontext.KindEndObject {
		key, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		found := key.String() == name
		if !found && other != nil {
			another = append(another[:0], key.String()...)
		}
		next, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		end := d.InputOffset()
		next = object[end-int64(len(next)) : end]
		switch {
		case found:
			value = next
		case other != nil:
			other(another, next)
		}
	}
	d.ReadToken()
	return value, checkEnd(d)
}

// describe says what a value is, for messages.
func describe(value jsontext.Value) string {
	kinds := map[jsontext.Kind]string{jsontext.KindString: "a text", jsontext.KindBeginArray: "a list",
		jsontext.KindBeginObject: "an object", jsontext.KindNumber: "a number"}
	return cmp.Or(kinds[value.Kind()], string(value))
}
