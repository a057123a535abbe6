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

// textOf returns the text of a field of a JSON object. null is an empty text. Of equal names, the last one counts. A byte that is not
// UTF-8 becomes U+FFFD, and so does a surrogate without its other half.
func textOf(object []byte, path []string) (text []byte, err error) {
	value := jsontext.Value(object)
	for i, name := range path {
		if value, err = member(value, name); err != nil {
			return nil, fmt.Errorf("is no JSON object: %w", err)
		}
		if value == nil {
			return nil, fmt.Errorf("has no field %s: name one with --field or --mask", strings.Join(path[:i+1], "."))
		}
	}
	switch value.Kind() {
	case jsontext.KindNull:
		return nil, nil
	case jsontext.KindString:
		text, _ = jsontext.AppendUnquote(nil, value) // the error only says that something became U+FFFD
		return text, nil
	}
	return nil, fmt.Errorf("field %s is no text: it is %.20s", strings.Join(path, "."), value)
}

// member reads a whole object, and returns the value of a name, or nil.
func member(object jsontext.Value, name string) (value jsontext.Value, err error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if begin, err := d.ReadToken(); err != nil || begin.Kind() != jsontext.KindBeginObject {
		return nil, cmp.Or(err, errors.New("it is another value"))
	}
	for d.PeekKind() != jsontext.KindEndObject {
		key, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		found := key.String() == name
		next, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		if found {
			end := d.InputOffset()
			value = object[end-int64(len(next)) : end]
		}
	}
	d.ReadToken()
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, cmp.Or(err, errors.New("more follows it"))
	}
	return value, nil
}
