package prepare

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// textOf returns the text in a JSON value to which a field leads; null is an empty text. If the
// field leads through a list, such as that of a chat, the text may be a list of parts.
func (w *encodeWorker) textOf(value jsontext.Value, f field) ([]byte, error) {
	switch kind := value.Kind(); {
	case kind == jsontext.KindNull:
		return nil, nil
	case kind == jsontext.KindString:
		return unquote(make([]byte, 0, len(value)), value), nil
	case kind == jsontext.KindBeginArray && f.inList():
		return w.partsText(value, f)
	}
	return nil, unusable(fmt.Sprintf("field %s is not a text", f), " but "+describe(value))
}

// partsText returns the text in a list of parts, such as [{"type": "text", "text": "Hello"}], and
// counts the parts without text as dropped.
func (w *encodeWorker) partsText(value jsontext.Value, f field) (text []byte, err error) {
	parts, err := elements(value)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		if part.Kind() == jsontext.KindString {
			text = unquote(text, part)
			continue
		}
		inner, err := member(part, "text", nil)
		if err != nil {
			return nil, unusable(fmt.Sprintf("field %s is not a list of texts and parts", f), ", because an element is "+describe(part))
		}
		kind, _ := member(part, "type", nil)
		if inner.Kind() == jsontext.KindString && (kind == nil || strings.HasSuffix(string(literal(kind)), "text")) {
			text = unquote(text, inner)
		} else {
			w.notes.Dropped.add(fmt.Sprintf("%s[type=%s]", f.path[len(f.path)-1].name, literal(kind)), 1)
		}
	}
	return text, nil
}

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
	return all, nil
}

// member parses a whole object, and returns its last member with this name, or nil. It calls other,
// unless it is nil, with each other member.
func member(object jsontext.Value, name string, other func(name []byte, value jsontext.Value)) (value jsontext.Value, err error) {
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
		switch end := d.InputOffset(); {
		case found:
			value = object[end-int64(len(next)) : end]
		case other != nil:
			other(another, next)
		}
	}
	d.ReadToken()
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, cmp.Or(err, errors.New("found more text after it"))
	}
	return value, nil
}

// describe says what a value is, for messages.
func describe(value jsontext.Value) string {
	kinds := map[jsontext.Kind]string{jsontext.KindString: "a text", jsontext.KindBeginArray: "a list", jsontext.KindBeginObject: "an object", jsontext.KindNumber: "a number"}
	return cmp.Or(kinds[value.Kind()], string(value))
}
