package prepare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// textOf returns the text of a field of a JSON object. The text may be a part of object's bytes. What is null is empty. Of equal names, the last one counts.
func textOf(object []byte, path []string) ([]byte, error) {
	if text, ok := scanText(object, path); ok {
		return text, nil
	}
	return decodeText(object, path)
}

// scanText is textOf in one pass.
func scanText(object []byte, path []string) (text []byte, ok bool) {
	s := scanner{json: object}
	ok = s.is('{') && s.object(path, 1) && s.end() && s.found
	return s.text, ok
}

// decodeText is textOf by encoding/json, which takes six times as long, and says what is wrong.
func decodeText(object []byte, path []string) ([]byte, error) {
	raw := json.RawMessage(object)
	for i, name := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return nil, fmt.Errorf("is no JSON object: %w", err)
		}
		var ok bool
		if raw, ok = object[name]; !ok {
			return nil, fmt.Errorf("has no field %s: name one with --field or --mask", strings.Join(path[:i+1], "."))
		}
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, fmt.Errorf("field %s is no text: %w", strings.Join(path, "."), err)
	}
	return []byte(text), nil
}

// A scanner goes once through JSON in valid UTF-8. It takes what encoding/json takes, except objects and arrays in more than
// maxDepth others. Its methods report whether they found what their names say, and go to its end.
type scanner struct {
	json  []byte
	i     int // how far it is
	text  []byte
	found bool // text is the field's
}

const maxDepth = 1000

// is goes over space and one byte, if that is next.
func (s *scanner) is(b byte) bool {
	s.space()
	ok := s.i < len(s.json) && s.json[s.i] == b
	if ok {
		s.i++
	}
	return ok
}

func (s *scanner) space() {
	for s.i < len(s.json) && (s.json[s.i] == ' ' || s.json[s.i] == '\n' || s.json[s.i] == '\t' || s.json[s.i] == '\r') {
		s.i++
	}
}

func (s *scanner) end() bool {
	s.space()
	return s.i == len(s.json)
}

// object goes over an object whose { was read. path leads to the field from there; it is nil if the field is elsewhere.
func (s *scanner) object(path []string, depth int) bool {
	if s.is('}') {
		return true
	}
	for {
		name, ok := s.string(path != nil)
		if !ok || !s.is(':') {
			return false
		}
		if path != nil && string(name) == path[0] {
			s.text, s.found = nil, false // of an earlier one
			ok = s.field(path[1:], depth)
		} else {
			ok = s.value(depth)
		}
		switch {
		case !ok:
			return false
		case s.is(','):
			continue
		}
		return s.is('}')
	}
}

// field goes over a value that the field is, or is in.
func (s *scanner) field(path []string, depth int) bool {
	s.space()
	switch rest := s.json[s.i:]; {
	case len(rest) == 0:
		return false
	case len(path) > 0 && rest[0] == '{' && depth < maxDepth:
		s.i++
		return s.object(path, depth+1)
	case len(path) == 0 && rest[0] == '"':
		s.text, s.found = s.string(true)
		return s.found
	case len(path) == 0 && rest[0] == 'n':
		s.found = true
	}
	return s.value(depth)
}

func (s *scanner) value(depth int) bool {
	s.space()
	if s.i == len(s.json) {
		return false
	}
	switch s.json[s.i] {
	case '"':
		_, ok := s.string(false)
		return ok
	case '{':
		s.i++
		return depth < maxDepth && s.object(nil, depth+1)
	case '[':
		s.i++
		return depth < maxDepth && s.array(depth+1)
	case 'n':
		return s.literal("null")
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	}
	return s.number()
}

func (s *scanner) array(depth int) bool {
	if s.is(']') {
		return true
	}
	for s.value(depth) {
		if !s.is(',') {
			return s.is(']')
		}
	}
	return false
}

func (s *scanner) literal(text string) bool {
	ok := bytes.HasPrefix(s.json[s.i:], []byte(text))
	s.i += len(text)
	return ok
}

// number goes over -?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?.
func (s *scanner) number() bool {
	s.oneOf("-")
	ok := s.oneOf("0") || s.digits()
	if s.oneOf(".") {
		ok = s.digits() && ok
	}
	if s.oneOf("eE") {
		s.oneOf("+-")
		ok = s.digits() && ok
	}
	return ok
}

func (s *scanner) digits() bool {
	from := s.i
	for s.oneOf("0123456789") {
	}
	return s.i > from
}

func (s *scanner) oneOf(these string) bool {
	ok := s.i < len(s.json) && strings.IndexByte(these, s.json[s.i]) >= 0
	if ok {
		s.i++
	}
	return ok
}

// string goes over a string, and returns its text if that is wanted.
func (s *scanner) string(wanted bool) (text []byte, ok bool) {
	if !s.is('"') {
		return nil, false
	}
	for {
		part := s.json[s.i:]
		n := plain(part)
		s.i += n
		switch {
		case n < len(part) && part[n] == '"':
			s.i++
			if text == nil {
				return part[:n], true
			}
			return append(text, part[:n]...), true
		case n < len(part) && part[n] == '\\':
			r, ok := s.escape()
			if !ok {
				return nil, false
			}
			if wanted {
				if text == nil {
					text = make([]byte, 0, len(part))
				}
				text = utf8.AppendRune(append(text, part[:n]...), r)
			}
		default:
			return nil, false
		}
	}
}

// plain is how many bytes stand for themselves in a string.
func plain(text []byte) int {
	for i, b := range text {
		if b < ' ' || b == '"' || b == '\\' {
			return i
		}
	}
	return len(text)
}

// escape goes over what a \ begins, and returns the character that it stands for. A surrogate without its other half is U+FFFD.
func (s *scanner) escape() (r rune, ok bool) {
	rest := s.json[s.i:]
	if len(rest) < 2 {
		return 0, false
	}
	s.i += 2
	if i := strings.IndexByte(`"\/bfnrt`, rest[1]); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), true
	}
	r, ok = unicodeEscape(rest)
	s.i += 4
	if ok && utf16.IsSurrogate(r) {
		low, _ := unicodeEscape(rest[6:])
		if r = utf16.DecodeRune(r, low); r != unicode.ReplacementChar {
			s.i += 6
		}
	}
	return r, ok
}

// unicodeEscape returns the number in the \uXXXX that a text begins with.
func unicodeEscape(text []byte) (r rune, ok bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n), err == nil
}
