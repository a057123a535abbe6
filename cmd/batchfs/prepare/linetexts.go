package prepare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

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
