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
