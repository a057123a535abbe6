package prepare

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A field is a path to texts in a line of JSON, or to a column.
type field struct {
	path     []step
	mask     byte   // mask of the texts' tokens, 0 or 1
	options  string // names of the options that can set the field, for messages
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

// newField parses a path such as meta.body, messages.*.content or messages[role=assistant].content.
func newField(path string, mask byte) field {
	f := field{mask: mask, options: "--field or --mask"}
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

func (f field) String() string { return f.path[len(f.path)-1].prefix }

func (f field) inList() bool { return slices.ContainsFunc(f.path, func(s step) bool { return s.list }) }

// names returns the names of consecutive members in the path, beginning with step depth.
func (f field) names(depth int) (names []string) {
	for _, s := range f.path[depth:] {
		if s.list {
			break
		}
		names = append(names, s.name)
	}
	return names
}

// hasDots reports whether the path has consecutive names, which are separated by a dot.
func (f field) hasDots() bool {
	for i := range f.path[1:] {
		if !f.path[i].list && !f.path[i+1].list {
			return true
		}
	}
	return false
}

// joined returns a field with the same texts whose names, beginning with step depth, are keys of
// value and of the objects in it. A key may contain dots, and then combines several names of f.
func (f field) joined(value jsontext.Value, depth int) field {
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

// nextStep returns step depth without its condition, or the zero step after the last one.
func (f field) nextStep(depth int) step {
	if depth == len(f.path) {
		return step{}
	}
	return step{name: f.path[depth].name, list: f.path[depth].list}
}

// follow takes step depth of the path: it returns the member of value with the name of the step.
// Like the function member, it calls other for each other member. The error says how to choose a
// field that exists.
func (f field) follow(value jsontext.Value, depth int, other func([]byte, jsontext.Value)) (
	inner jsontext.Value, err error,
) {
	inner, err = member(value, f.path[depth].name, other)
	switch {
	case err != nil && depth == 0:
		err = unusable(notObject, ": "+err.Error())
	case err != nil && value.Kind() == jsontext.KindBeginArray:
		list := f.path[depth-1].prefix
		err = unusable(list+" is a list", fmt.Sprintf(": to take a text of each element, write %s.*.%s", list, f.path[depth].name))
	case err != nil:
		err = unusable(f.path[depth-1].prefix+" is not a JSON object", ": "+err.Error())
	case inner == nil:
		var names []string
		member(value, f.path[depth].name, func(name []byte, _ jsontext.Value) { names = append(names, string(name)) })
		hint := ""
		if list, _, ok := strings.Cut(f.path[depth].prefix, "["); ok && list != "" {
			hint = fmt.Sprintf("; for the elements of a list, write %s.* or, for some of them, %[1]s[role=user]", list)
		}
		err = unusable("has no field "+f.path[depth].prefix, fmt.Sprintf(": choose one with %s; there are %q%s", f.options, names[:min(20, len(names))], hint))
	}
	return inner, err
}

// readField calls read with a field and a line. If read fails, readField tries keys of the line
// that contain dots instead of the field's names.
func readField[T any](f field, line jsontext.Value, read func(field, jsontext.Value) (T, error)) (T, error) {
	value, err := read(f, line)
	if err != nil && f.hasDots() {
		if value, err := read(f.joined(line, 0), line); err == nil {
			return value, nil
		}
	}
	return value, err
}

// valueIn returns the value of a field in a line. The path must not lead through a list.
func (f field) valueIn(line jsontext.Value) (value jsontext.Value, err error) {
	value = line
	for depth := range f.path {
		if value, err = f.follow(value, depth, nil); err != nil {
			return nil, err
		}
	}
	return value, nil
}

type maskedText struct {
	text []byte
	mask byte
}

// lineTexts returns the texts to which the fields lead, and what was counted on the way. If there
// are no such texts, names that are separated by dots may be a single key.
func (w *encodeWorker) lineTexts(line jsontext.Value) ([]maskedText, *notes, error) {
	texts, counted, err := w.fieldTexts(line, false)
	if err != nil && w.encoding.hasDots {
		if texts, counted, err := w.fieldTexts(line, true); err == nil {
			return texts, counted, nil
		}
	}
	return texts, counted, err
}

func (w *encodeWorker) fieldTexts(line jsontext.Value, joinNames bool) ([]maskedText, *notes, error) {
	all := w.notes
	defer func() { w.notes = all }()
	w.lineNotes = notes{}
	w.notes, w.joinNames = &w.lineNotes, joinNames
	texts, err := w.appendTexts(nil, line, w.encoding.fields, 0)
	return texts, w.notes, err
}

// appendTexts appends the texts to which fields lead from value, in the order of the fields. The
// fields agree in their first depth steps, which led from the whole line to value.
//
// Fields that lead into the same list are evaluated together, element by element. If several fields
// lead to the same text, the first one whose conditions hold determines the text's mask. If there
// is none, the mask is 0.
func (w *encodeWorker) appendTexts(list []maskedText, value jsontext.Value, fields []field, depth int) (
	_ []maskedText, err error,
) {
	if w.joinNames && value.Kind() == jsontext.KindBeginObject {
		fields = slices.Clone(fields)
		for i, f := range fields {
			fields[i] = f.joined(value, depth)
		}
	}
	all := fields
	var other func(name []byte, value jsontext.Value)
	if depth > 0 && fields[0].path[depth-1].list {
		other = func(name []byte, value jsontext.Value) { w.countDropped(all, depth, name, value) }
	}
	for len(fields) > 0 && err == nil {
		n := groupLen(fields, depth)
		group := fields[:n]
		fields = fields[n:]
		if depth == len(group[0].path) {
			var text []byte
			if text, err = w.textOf(value, group[0]); err == nil {
				list = append(list, maskedText{text, w.maskOf(group)})
			}
			continue
		}
		if group[0].path[depth].list {
			list, err = w.appendElementTexts(list, value, group, depth)
			continue
		}
		var inner jsontext.Value
		if inner, err = group[0].follow(value, depth, other); err == nil {
			list, err = w.appendTexts(list, inner, group, depth+1)
		}
		other = nil // has counted all members
	}
	return list, err
}

// appendElementTexts appends the texts of list elements. Elements that do not meet a condition are
// left out with --field, and get mask 0 with --mask.
func (w *encodeWorker) appendElementTexts(list []maskedText, value jsontext.Value, group []field, depth int) (
	[]maskedText, error,
) {
	all, err := elements(value)
	if err != nil {
		return nil, unusable(fmt.Sprintf("field %s is not a list", group[0].path[depth].prefix), " but "+describe(value))
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
					return nil, unusable(fmt.Sprintf("field %s is not a list of JSON objects", s.prefix), ": "+err.Error())
				}
				key, actual = s.key, literal(found)
			}
			chosen[i].excluded = chosen[i].excluded || string(actual) != s.value
		}
		if !w.encoding.masked && chosen[0].excluded {
			continue
		}
		if maskingField(group) >= 0 && maskingField(chosen) < 0 {
			w.notes.Unnamed.add(key+"="+string(actual), 1)
		}
		if list, err = w.appendTexts(list, element, chosen, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// groupLen returns how many of the first fields are evaluated together: all that lead into a list
// and share the next step, or else only the first.
func groupLen(fields []field, depth int) int {
	n := 1
	for n < len(fields) && fields[0].inList() && fields[n].inList() && fields[n].nextStep(depth) == fields[0].nextStep(depth) {
		n++
	}
	return n
}

func (w *encodeWorker) maskOf(fields []field) byte {
	i := maskingField(fields)
	if i < 0 {
		return 0
	}
	if w.encoding.masked {
		w.notes.Matched.add(fields[i].String(), 1)
	}
	return fields[i].mask
}

// maskingField returns the index of the field that determines the mask of a text, or -1.
func maskingField(fields []field) int {
	return slices.IndexFunc(fields, func(f field) bool { return !f.excluded })
}

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

// countDropped counts a member of a list element, unless it is empty, a field leads to it, or a
// condition compares it.
func (w *encodeWorker) countDropped(fields []field, depth int, name []byte, value jsontext.Value) {
	switch string(value) {
	case "null", `""`, "[]", "{}":
		return
	}
	if !slices.ContainsFunc(fields, func(f field) bool {
		return f.nextStep(depth).name == string(name) || f.path[depth-1].key == string(name)
	}) {
		w.notes.Dropped.add(string(name), 1)
	}
}

// documentID returns the value to which --id leads in a line, as JSON without line breaks.
func (e *encoding) documentID(line jsontext.Value) (jsontext.Value, error) {
	value, err := readField(*e.id, line, field.valueIn)
	if kind := value.Kind(); err == nil && (kind == jsontext.KindBeginArray || kind == jsontext.KindBeginObject) {
		err = unusable("field "+e.id.String()+" is not a single value", " but "+describe(value))
	}
	return value, err
}
