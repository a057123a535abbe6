package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// A document is one TOML text: the configuration file, or one --set argument.
type document struct {
	text string
	name string // of the file; empty for --set
	keys []toml.Key
	tree map[string]any
}

// An origin is the key of a document that a value was set by.
type origin struct {
	doc *document
	key toml.Key
}

// inner is the origin of a key within a table.
func (o origin) inner(names ...string) origin {
	return origin{o.doc, append(slices.Clone(o.key), names...)}
}

// String names the key and where it stands, as the beginning of a message.
func (o origin) String() string { return o.doc.describe(o.key) }

func parse(name, text string) (*document, error) {
	text = strings.TrimPrefix(text, "\ufeff") // the decoder's positions do not count it
	d := &document{text: text, name: name}
	meta, err := toml.Decode(text, &d.tree)
	var syntax toml.ParseError
	if errors.As(err, &syntax) {
		hint := ""
		if strings.HasPrefix(syntax.Message, "expected value but found") {
			hint = "; a string stands in quotes"
		}
		return nil, fmt.Errorf("%s:%d: %s%s", name, d.lineOfError(syntax), syntax.Message, hint)
	}
	d.keys = meta.Keys()
	return d, err
}

// parseSet parses a --set argument. Strings need no quotes: a value that is not TOML is a string.
func parseSet(arg string) (*document, error) {
	name, value, ok := strings.Cut(arg, "=")
	// The value is added after parsing: TOML text must be UTF-8 without control characters, which a path need not be.
	unquoted, err := parse("", name+` = ""`)
	if !ok || err != nil || len(unquoted.keys) != 1 || strings.ContainsAny(name, "\r\n") {
		return nil, fmt.Errorf("--set %s: must be key=value, e.g. --set batch.seed=7", arg)
	}
	if !strings.ContainsAny(value, "\r\n") {
		if d, err := parse("", name+" = "+value); err == nil {
			return d, nil
		}
	}
	k := unquoted.keys[0]
	unquoted.value(k[:len(k)-1]).(map[string]any)[k[len(k)-1]] = value
	return unquoted, nil
}

// value returns the value of a key, or nil.
func (d *document) value(k toml.Key) any {
	var v any = d.tree
	for _, name := range k {
		if list := tables(v); list != nil {
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(list) {
				return nil
			}
			v = list[i]
			continue
		}
		table, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = table[name]
	}
	return v
}

// tables returns the tables of a value that is a list of tables, and nil for any other value.
func tables(value any) (list []map[string]any) {
	if list, ok := value.([]map[string]any); ok {
		return list
	}
	values, _ := value.([]any) // as [{...}, {...}] is decoded
	for _, v := range values {
		table, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		list = append(list, table)
	}
	return list
}

// relative makes a path in the document one that this process can open: paths in a file are relative to the file.
func (d *document) relative(path string) string {
	if d.name == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(d.name), path)
}

// describe names a key and where it stands, as the beginning of a message.
func (d *document) describe(k toml.Key) string {
	if d.name == "" {
		return "--set " + k.String()
	}
	if line := d.line(k); line > 0 {
		return fmt.Sprintf("%s:%d: %s", d.name, line, k)
	}
	return fmt.Sprintf("%s: %s", d.name, k)
}

// line returns the line on which the statement begins that sets a key, or 0. It is the one behind the longest beginning of the text
// that is TOML without the key.
func (d *document) line(k toml.Key) int {
	for len(k) > 1 && d.value(k) == nil { // within a value
		k = k[:len(k)-1]
	}
	begin, lines, end := 1, 0, 0
	for line := range strings.Lines(d.text) {
		lines, end = lines+1, end+len(line)
		part, err := parse("", d.text[:end])
		switch {
		case err != nil:
		case part.value(k) != nil:
			return begin
		default:
			begin = lines + 1
		}
	}
	return 0
}

// withoutIndexes returns a key of a split without the indexes of tables in lists.
func withoutIndexes(k toml.Key) (names toml.Key) {
	for i, name := range k {
		if i < 3 || strings.Trim(name, "0123456789") != "" {
			names = append(names, name)
		}
	}
	return names
}

// lineOfError counts lines itself: the decoder's number is the last line of a string of several lines, and one too low at
// the end of the text.
func (d *document) lineOfError(e toml.ParseError) int {
	start := min(max(e.Position.Start, 0), len(d.text))
	return 1 + strings.Count(d.text[:start], "\n")
}

// show returns a value as it would stand in the file.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case map[string]any:
		return "a table"
	}
	text, err := toml.Marshal(map[string]any{"": v})
	if err != nil {
		return fmt.Sprint(v)
	}
	value, ok := strings.CutPrefix(strings.TrimSpace(string(text)), `"" = `)
	if !ok {
		return "a list of tables"
	}
	return value
}
