package prepare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A field leads to texts of a line, or of a row.
type field struct {
	path []step
	mask byte // of its tokens
	off  bool // in a list, a condition of its path does not hold
}

// A step leads from an object to a member, or from a list to its elements.
type step struct {
	name  string // of the member
	list  bool
	key   string // of a list: elements have a member key ...
	value string // ... of this value; all elements do if key is empty
	text  string // the path up to here, as it is written
}

// newField reads a path such as meta.body, messages.*.content or messages[role=assistant].content.
func newField(path string, mask byte) field {
	f := field{mask: mask}
	text := ""
	for i, part := range strings.Split(path, ".") {
		if i > 0 {
			text += "."
		}
		text += part
		if part == "*" {
			f.path = append(f.path, step{list: true, text: text})
			continue
		}
		name, condition, _ := strings.Cut(part, "[")
		key, value, ok := strings.Cut(strings.TrimSuffix(condition, "]"), "=")
		if !ok || !strings.HasSuffix(condition, "]") {
			f.path = append(f.path, step{name: part, text: text})
			continue
		}
		f.path = append(f.path, step{name: name, text: strings.TrimSuffix(text, "["+condition)}, step{list: true, key: key, value: value, text: text})
	}
	return f
}

// inList reports whether the field leads into a list.
func (f field) inList() bool { return slices.ContainsFunc(f.path, func(s step) bool { return s.list }) }

// names are the names of all steps.
func (f field) names() (names []string) {
	for _, s := range f.path {
		names = append(names, s.name)
	}
	return names
}

// A maskedText is a text of a document, and the mask of its tokens.
type maskedText struct {
	text []byte
	mask byte
}

// texts appends the texts of a line, in the order of the fields. Fields that lead into one list are taken together, element by element. Of
// several that lead to the same text, the mask is that of the first whose conditions hold, or 0.
func (c *encodeOptions) texts(list []maskedText, line []byte) ([]maskedText, error) {
	return c.choose(list, line, c.fields, 0)
}

// choose appends the texts that fields lead to from a value, which they have led to down to a depth of their paths.
func (c *encodeOptions) choose(list []maskedText, value jsontext.Value, fields []field, depth int) (_ []maskedText, err error) {
	for len(fields) > 0 && err == nil {
		n := together(fields, depth)
		group := fields[:n]
		fields = fields[n:]
		if depth == len(group[0].path) {
			var text []byte
			if text, err = textOf(value, group[0].path[depth-1].text); err == nil {
				list = append(list, maskedText{text, maskOf(group)})
			}
			continue
		}
		if group[0].path[depth].list {
			list, err = c.chooseElements(list, value, group, depth)
			continue
		}
		var inner jsontext.Value
		if inner, err = group[0].follow(value, depth); err == nil {
			list, err = c.choose(list, inner, group, depth+1)
		}
	}
	return list, err
}

// follow returns the member of a value that the path leads to.
func (f field) follow(value jsontext.Value, depth int) (inner jsontext.Value, err error) {
	inner, err = member(value, f.path[depth].name)
	switch {
	case err != nil && depth > 0 && value.Kind() == jsontext.KindBeginArray:
		err = fmt.Errorf("%s is a list: for texts of all its elements, write %[1]s.*.%s", f.path[depth-1].text, f.path[depth].name)
	case err != nil && depth == 0:
		err = fmt.Errorf("is no JSON object: %w", err)
	case err != nil:
		err = fmt.Errorf("%s is no JSON object: %w", f.path[depth-1].text, err)
	case inner == nil:
		err = fmt.Errorf("has no field %s: name one with --field or --mask", f.path[depth].text)
	}
	return inner, err
}

// chooseElements appends the texts of the elements of a list. Elements for which a condition of --field does not hold have none; of --mask, theirs
// have mask 0.
func (c *encodeOptions) chooseElements(list []maskedText, value jsontext.Value, group []field, depth int) ([]maskedText, error) {
	all, err := elements(value)
	if err != nil {
		return nil, fmt.Errorf("field %s %w", group[0].path[depth].text, err)
	}
	for _, element := range all {
		chosen := slices.Clone(group)
		for i := range chosen {
			if s := chosen[i].path[depth]; s.key != "" {
				is, err := member(element, s.key)
				if err != nil {
					return nil, fmt.Errorf("field %s is no list of JSON objects: %w", s.text, err)
				}
				chosen[i].off = chosen[i].off || !isValue(is, s.value)
			}
		}
		if !c.masked && chosen[0].off {
			continue
		}
		if list, err = c.choose(list, element, chosen, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// together counts the fields that are taken together with the first: in a list, those that lead to the same.
func together(fields []field, depth int) int {
	n := 1
	for n < len(fields) && fields[0].inList() && fields[n].inList() && fields[n].next(depth) == fields[0].next(depth) {
		n++
	}
	return n
}

// next is what the field leads to from a depth on: a member, elements, or nothing.
func (f field) next(depth int) step {
	if depth == len(f.path) {
		return step{}
	}
	return step{name: f.path[depth].name, list: f.path[depth].list}
}

// maskOf is the mask of a text that fields lead to.
func maskOf(fields []field) byte {
	if i := slices.IndexFunc(fields, func(f field) bool { return !f.off }); i >= 0 {
		return fields[i].mask
	}
	return 0
}
