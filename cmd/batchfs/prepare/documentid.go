package prepare

import "github.com/go-json-experiment/json/jsontext"

// idsSuffix is appended to the name of a token file to form that of the file with the ids of its
// documents: a line of JSON for each, in the order of the index.
const idsSuffix = ".ids"

// documentID returns the value to which --id leads in a line, as JSON without line breaks.
func (e *encoding) documentID(line jsontext.Value) (jsontext.Value, error) {
	value, err := readField(*e.id, line, field.valueIn)
	if kind := value.Kind(); err == nil && (kind == jsontext.KindBeginArray || kind == jsontext.KindBeginObject) {
		err = unusable("field "+e.id.String()+" is not a single value", " but "+describe(value))
	}
	return value, err
}

// readField returns what read finds in a line at a field. If that fails, names that are separated
// by dots may be a single key.
func readField[T any](f field, line jsontext.Value, read func(field, jsontext.Value) (T, error)) (T, error) {
	value, err := read(f, line)
	if err != nil && f.hasDots() {
		if value, err := read(f.joined(line, 0), line); err == nil {
			return value, nil
		}
	}
	return value, err
}

// valueIn returns the value to which a field that leads through no list leads in a line.
func (f field) valueIn(line jsontext.Value) (value jsontext.Value, err error) {
	value = line
	for depth := range f.path {
		if value, err = f.follow(value, depth, nil); err != nil {
			return nil, err
		}
	}
	return value, nil
}
