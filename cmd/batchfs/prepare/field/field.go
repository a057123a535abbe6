// Package field finds texts, ids and other values in lines of JSON, by paths such as
// messages[role=user].content.
//
// A [Field] is such a path. A [Finder] finds the texts of a line, and counts what it passes over;
// [Field.IDRow] and [Field.Value] find ids, and the id of a document. If a line lacks what a field
// leads to, they return an [UnusableError]. [Keys] finds the same in a schema.
package field

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A Field is a path to texts in a line of JSON, or to a column.
type Field struct {
	path     []step
	Mask     byte   // mask of the texts' tokens, 0 or 1
	Options  string // names of the options that can set the field, for messages
	excluded bool   // whether the current list element does not meet a condition of the path
}

// A step of a path leads from an object to a member, or from a list to its elements.
type step struct {
	name   string // name of the member, if the step leads to one
	list   bool   // whether the step leads to list elements
	key    string // name of the member that must equal value; if empty, there is no condition
	value  string
	prefix string // text of the path up to and including this step
}

// New parses a path such as meta.body, messages.*.content or messages[role=assistant].content.
func New(path string, mask byte) Field {
	f := Field{Mask: mask, Options: "--field or --mask"}
	text := ""
	for i, part := range splitOutside(path, '.') {
		if i > 0 {
			text += "."
		}
		text += part
		if part == "*" {
			f.path = append(f.path, step{list: true, prefix: text})
			continue
		}
		name, condition, _ := strings.Cut(part, "[")
		key, value, ok := strings.Cut(strings.TrimSuffix(condition, "]"), "=")
		if !ok || !strings.HasSuffix(condition, "]") {
			f.path = append(f.path, step{name: part, prefix: text})
			continue
		}
		f.path = append(f.path, step{name: name, prefix: strings.TrimSuffix(text, "["+condition)}, step{list: true, key: key, value: value, prefix: text})
	}
	return f
}

// CheckConditions returns an error if a list in a path has more than one condition.
func CheckConditions(path string) error {
	for _, s := range New(path, 0).path {
		if strings.Contains(s.value, "]") {
			return fmt.Errorf("a list can have only one condition, such as messages[role=user].content (got %q)", path)
		}
	}
	return nil
}

var conditionPattern = regexp.MustCompile(`\[[^\[\].=]*=[^\]]*\]`)

// splitOutside splits a path, or a list of paths, at each separator that is not in a condition,
// such as [model=gpt-3.5].
func splitOutside(text string, separator byte) (parts []string) {
	conditions := append(conditionPattern.FindAllStringIndex(text, -1), []int{len(text), len(text)})
	begin, i := 0, 0
	for _, c := range conditions {
		for ; i < c[0]; i++ {
			if text[i] == separator {
				parts = append(parts, text[begin:i])
				begin = i + 1
			}
		}
		i = c[1]
	}
	return append(parts, text[begin:])
}

// ParseMask parses the argument of --mask.
func ParseMask(list string) (fields []Field, err error) {
	for _, part := range splitOutside(list, ',') {
		part = strings.TrimSpace(part)
		colon := max(strings.LastIndex(part, ":"), 0)
		name, mask := part[:colon], part[colon:]
		if name == "" || mask != ":0" && mask != ":1" {
			return nil, fmt.Errorf("--mask: must list fields with 0 or 1, such as prompt:0,completion:1 or messages[role=assistant].content:1 (got %q)", list)
		}
		if err := CheckConditions(name); err != nil {
			return nil, fmt.Errorf("--mask: %w", err)
		}
		if slices.ContainsFunc(fields, func(f Field) bool { return f.String() == name }) {
			return nil, fmt.Errorf("--mask: must list each field once (got %s twice in %q)", name, list)
		}
		fields = append(fields, New(name, mask[1]-'0'))
	}
	return fields, nil
}

// String returns the path.
func (f Field) String() string { return f.path[len(f.path)-1].prefix }

// InList reports whether the path leads through a list.
func (f Field) InList() bool { return slices.ContainsFunc(f.path, func(s step) bool { return s.list }) }

// names returns the names of consecutive members in the path, beginning with step depth.
func (f Field) names(depth int) (names []string) {
	for _, s := range f.path[depth:] {
		if s.list {
			break
		}
		names = append(names, s.name)
	}
	return names
}

// hasDots reports whether the path has consecutive names, which are separated by a dot.
func (f Field) hasDots() bool {
	for i := range f.path[1:] {
		if !f.path[i].list && !f.path[i+1].list {
			return true
		}
	}
	return false
}

// joined returns a field with the same texts whose names, beginning with step depth, are keys of
// value and of the objects in it. A key may contain dots, and then combines several names of f.
func (f Field) joined(value jsontext.Value, depth int) Field {
	names := f.names(depth)
	keys := keysOf(value, names, func(value jsontext.Value, name string) (jsontext.Value, bool) {
		inner, err := member(value, name, nil)
		return inner, err == nil && inner != nil
	})
	if len(keys) == 0 || len(keys) == len(names) {
		return f
	}
	path, at := slices.Clone(f.path[:depth]), depth
	for _, key := range keys {
		n := 1
		for strings.Join(names[:n], ".") != key {
			n++
		}
		names, at = names[n:], at+n
		path = append(path, step{name: key, prefix: f.path[at-1].prefix})
	}
	f.path = append(path, f.path[at:]...)
	return f
}

// keysOf returns the keys to look up in value, one after the other, to get to what names stand for.
// It prefers single names, and then keys that combine as many names as possible. It returns nil if
// there are no such keys.
func keysOf[T any](value T, names []string, member func(value T, name string) (T, bool)) []string {
	if len(names) == 0 {
		return []string{}
	}
	for i := range names {
		n := len(names) - i + 1 // after the single name, the longest key is tried first
		if i == 0 {
			n = 1
		}
		key := strings.Join(names[:n], ".")
		if inner, ok := member(value, key); ok {
			if rest := keysOf(inner, names[n:], member); rest != nil {
				return append([]string{key}, rest...)
			}
		}
	}
	return nil
}

// Keys returns the keys to look up in value, one after the other, to get to what the names at the
// beginning of the path of f stand for. A key may combine several names with dots. Keys returns nil
// if there are no such keys.
func Keys[T any](f Field, value T, member func(value T, name string) (T, bool)) []string {
	return keysOf(value, f.names(0), member)
}

// nextStep returns step depth without its condition, or the zero step after the last one.
func (f Field) nextStep(depth int) step {
	if depth == len(f.path) {
		return step{}
	}
	return step{name: f.path[depth].name, list: f.path[depth].list}
}

// follow takes step depth of the path: it returns the member of value with the name of the step.
// Like the function member, it calls other for each other member. The error says how to choose a
// field that exists.
func (f Field) follow(value jsontext.Value, depth int, other func([]byte, jsontext.Value)) (
	inner jsontext.Value, err error,
) {
	inner, err = member(value, f.path[depth].name, other)
	switch {
	case err != nil && depth == 0:
		err = Unusable(notObject, ": "+err.Error())
	case err != nil && value.Kind() == jsontext.KindBeginArray:
		list := f.path[depth-1].prefix
		err = Unusable(list+" is a list", fmt.Sprintf(": to take a text of each element, write %s.*.%s", list, f.path[depth].name))
	case err != nil:
		err = Unusable(f.path[depth-1].prefix+" is not a JSON object", ": "+err.Error())
	case inner == nil:
		var names []string
		member(value, f.path[depth].name, func(name []byte, _ jsontext.Value) { names = append(names, string(name)) })
		hint := ""
		if _, index, ok := strings.Cut(f.path[depth].name, "["); ok { // such as list[0]
			list := strings.TrimSuffix(f.path[depth].prefix, "["+index)
			hint = fmt.Sprintf("; for the elements of a list, write %s.* or, for some of them, %[1]s[role=user]", list)
		}
		err = Unusable("has no field "+f.path[depth].prefix, fmt.Sprintf(": choose one with %s; there are %q%s", f.Options, names[:min(20, len(names))], hint))
	}
	return inner, err
}

// readField calls read with a field and a line. If read fails, readField tries keys of the line
// that contain dots instead of the field's names.
func readField[T any](f Field, line jsontext.Value, read func(Field, jsontext.Value) (T, error)) (T, error) {
	value, err := read(f, line)
	if err != nil && f.hasDots() {
		if value, err := read(f.joined(line, 0), line); err == nil {
			return value, nil
		}
	}
	return value, err
}

// Value returns the value of a field in a line, as JSON without line breaks. The path must not lead
// through a list.
func (f Field) Value(line jsontext.Value) (jsontext.Value, error) {
	value, err := readField(f, line, Field.valueIn)
	if kind := value.Kind(); err == nil && (kind == jsontext.KindBeginArray || kind == jsontext.KindBeginObject) {
		err = Unusable("field "+f.String()+" is not a single value", " but "+describe(value))
	}
	return value, err
}

// valueIn returns the value of a field in a line. The path must not lead through a list.
func (f Field) valueIn(line jsontext.Value) (value jsontext.Value, err error) {
	value = line
	for depth := range f.path {
		if value, err = f.follow(value, depth, nil); err != nil {
			return nil, err
		}
	}
	return value, nil
}

// A Text is a text of a document, in UTF-8 if the line is.
type Text struct {
	Bytes []byte
	Mask  byte // of its tokens, 0 or 1
}

// A Finder finds the texts of lines. It belongs to one goroutine.
type Finder struct {
	fields    []Field
	masked    bool
	hasDots   bool   // whether a field has several names in a row
	joinNames bool   // whether such names may be one key
	counts    Counts // of the current line; a field, so that a line allocates none
}

// NewFinder returns a finder of the texts to which fields lead. masked says whether it is --mask
// that names them.
func NewFinder(fields []Field, masked bool) *Finder {
	return &Finder{fields: fields, masked: masked, hasDots: slices.ContainsFunc(fields, Field.hasDots)}
}

// Texts returns the texts to which the fields lead, and what was counted on the way, which the next
// call overwrites. If there are no such texts, names that are separated by dots may be a single
// key.
func (finder *Finder) Texts(line jsontext.Value) ([]Text, *Counts, error) {
	texts, err := finder.fieldTexts(line, false)
	if err != nil && finder.hasDots {
		if texts, err := finder.fieldTexts(line, true); err == nil {
			return texts, &finder.counts, nil
		}
	}
	return texts, &finder.counts, err
}

func (finder *Finder) fieldTexts(line jsontext.Value, joinNames bool) ([]Text, error) {
	finder.counts, finder.joinNames = Counts{}, joinNames
	return finder.appendTexts(nil, line, finder.fields, 0)
}

// appendTexts appends the texts to which fields lead from value, in the order of the fields. The
// fields agree in their first depth steps, which led from the whole line to value.
//
// Fields that lead into the same list are evaluated together, element by element. If several fields
// lead to the same text, the first one whose conditions hold determines the text's mask. If there
// is none, the mask is 0.
func (finder *Finder) appendTexts(list []Text, value jsontext.Value, fields []Field, depth int) (
	_ []Text, err error,
) {
	if finder.joinNames && value.Kind() == jsontext.KindBeginObject {
		fields = slices.Clone(fields)
		for i, f := range fields {
			fields[i] = f.joined(value, depth)
		}
	}
	all := fields
	var other func(name []byte, value jsontext.Value)
	if depth > 0 && fields[0].path[depth-1].list {
		other = func(name []byte, value jsontext.Value) { finder.countDropped(all, depth, name, value) }
	}
	for len(fields) > 0 && err == nil {
		n := groupLen(fields, depth)
		group := fields[:n]
		fields = fields[n:]
		if depth == len(group[0].path) {
			var text []byte
			if text, err = finder.textOf(value, group[0]); err == nil {
				list = append(list, Text{text, finder.maskOf(group)})
			}
			continue
		}
		if group[0].path[depth].list {
			list, err = finder.appendElementTexts(list, value, group, depth)
			continue
		}
		var inner jsontext.Value
		if inner, err = group[0].follow(value, depth, other); err == nil {
			list, err = finder.appendTexts(list, inner, group, depth+1)
		}
		other = nil // has counted all members
	}
	return list, err
}

// appendElementTexts appends the texts of list elements. Elements that do not meet a condition are
// left out with --field, and get mask 0 with --mask.
func (finder *Finder) appendElementTexts(list []Text, value jsontext.Value, group []Field, depth int) (
	[]Text, error,
) {
	all, err := elements(value)
	if err != nil {
		return nil, Unusable(fmt.Sprintf("field %s is not a list", group[0].path[depth].prefix), " but "+describe(value))
	}
	for _, element := range all {
		chosen := slices.Clone(group)
		var key string
		var actual []byte
		for i := range chosen {
			s := chosen[i].path[depth]
			if s.key == "" {
				continue
			}
			if s.key != key {
				found, err := member(element, s.key, nil)
				if err != nil {
					return nil, Unusable(fmt.Sprintf("field %s is not a list of JSON objects", s.prefix), ": "+err.Error())
				}
				key, actual = s.key, literal(found)
			}
			chosen[i].excluded = chosen[i].excluded || string(actual) != s.value
		}
		if !finder.masked && chosen[0].excluded {
			continue
		}
		if maskingField(group) >= 0 && maskingField(chosen) < 0 {
			finder.counts.Unnamed.Add(key+"="+string(actual), 1)
		}
		if list, err = finder.appendTexts(list, element, chosen, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// groupLen returns how many of the first fields are evaluated together: all that lead into a list
// and share the next step, or else only the first.
func groupLen(fields []Field, depth int) int {
	n := 1
	for n < len(fields) && fields[0].InList() && fields[n].InList() && fields[n].nextStep(depth) == fields[0].nextStep(depth) {
		n++
	}
	return n
}

func (finder *Finder) maskOf(fields []Field) byte {
	i := maskingField(fields)
	if i < 0 {
		return 0
	}
	if finder.masked {
		finder.counts.Matched.Add(fields[i].String(), 1)
	}
	return fields[i].Mask
}

// maskingField returns the index of the field that determines the mask of a text, or -1.
func maskingField(fields []Field) int {
	return slices.IndexFunc(fields, func(f Field) bool { return !f.excluded })
}

// textOf returns the text in a JSON value to which a field leads; null is an empty text. A field
// that leads through a list, as in a chat, may also lead to a text that is itself a list of parts.
func (finder *Finder) textOf(value jsontext.Value, f Field) ([]byte, error) {
	switch kind := value.Kind(); {
	case kind == jsontext.KindNull:
		return nil, nil
	case kind == jsontext.KindString:
		return unquote(make([]byte, 0, len(value)), value), nil
	case kind == jsontext.KindBeginArray && f.InList():
		return finder.partsText(value, f)
	}
	return nil, Unusable(fmt.Sprintf("field %s is not a text", f), " but "+describe(value))
}

// partsText returns the text in a list of parts, such as [{"type": "text", "text": "Hello"}], and
// counts the parts without text as dropped.
func (finder *Finder) partsText(value jsontext.Value, f Field) (text []byte, err error) {
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
			return nil, Unusable(fmt.Sprintf("field %s is not a list of texts and parts", f), ", because an element is "+describe(part))
		}
		kind, _ := member(part, "type", nil)
		if inner.Kind() == jsontext.KindString && (kind == nil || strings.HasSuffix(string(literal(kind)), "text")) {
			text = unquote(text, inner)
		} else {
			finder.counts.Dropped.Add(fmt.Sprintf("%s[type=%s]", cmp.Or(f.path[len(f.path)-1].name, f.String()), literal(kind)), 1)
		}
	}
	return text, nil
}

// countDropped counts a member of a list element, unless it is empty, a field leads to it, or a
// condition compares it.
func (finder *Finder) countDropped(fields []Field, depth int, name []byte, value jsontext.Value) {
	switch string(value) {
	case "null", `""`, "[]", "{}":
		return
	}
	if !slices.ContainsFunc(fields, func(f Field) bool {
		return f.nextStep(depth).name == string(name) || f.path[depth-1].key == string(name)
	}) {
		finder.counts.Dropped.Add(string(name), 1)
	}
}

// An UnusableError says why a line cannot be used.
type UnusableError struct {
	Kind string // the same for all lines with this fault, to count them
	Err  error
}

// Error implements [error].
func (e UnusableError) Error() string { return e.Err.Error() }

// Unusable returns the error whose text consists of kind and details.
func Unusable(kind, details string) UnusableError {
	return UnusableError{kind, errors.New(kind + details)}
}

const notObject = "not a JSON object"
