package prepare

import (
	"fmt"
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
	for i, part := range strings.Split(path, ".") {
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
		at += 1 + strings.Count(key, ".")
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
		err = unusable("has no field "+f.path[depth].prefix, fmt.Sprintf(": choose one with %s; there are %q", f.options, names[:min(20, len(names))]))
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
