package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
)

// A document is a parsed TOML text: the configuration file, or one --set argument.
type document struct {
	text string
	name string     // path of the file; empty for --set
	word string     // unquoted value of --set, a string if the key needs one; empty for files
	keys []toml.Key // all keys without duplicates, in text order
	tree map[string]any
}

// A keyRef is a key in a document.
type keyRef struct {
	doc *document
	key toml.Key
}

func (r keyRef) child(names ...string) keyRef {
	return keyRef{r.doc, append(slices.Clone(r.key), names...)}
}

// String returns the location and name of the key, for the beginning of a message.
func (r keyRef) String() string {
	if r.doc.name == "" {
		return "--set " + r.key.String()
	}
	return fmt.Sprintf("%s:%d: %s", r.doc.name, r.doc.line(r.key), r.key)
}

// parse parses a TOML text. name is empty for --set.
func parse(name, text string) (*document, error) {
	text = strings.TrimPrefix(text, "\ufeff") // the decoder's positions do not include it
	d := &document{text: text, name: name}
	meta, err := toml.Decode(text, &d.tree)
	var syntax toml.ParseError
	if errors.As(err, &syntax) {
		// Count the lines up to Position.Start, because the decoder's own line number is that of
		// the end of a multi-line string, and one too low at the end of the text.
		before := text[:min(max(syntax.Position.Start, 0), len(text))]
		line := 1 + strings.Count(before, "\n")
		begin, _, _ := strings.Cut(text[strings.LastIndex(before, "\n")+1:], "\n")
		return nil, fmt.Errorf("%s:%d: %s%s", name, line, syntax.Message, quotingHint(begin))
	}
	seen := map[string]bool{} // meta.Keys repeats the keys of an array of tables for each table
	for _, k := range meta.Keys() {
		if text := k.String(); !seen[text] {
			seen[text] = true
			d.keys = append(d.keys, k)
		}
	}
	return d, err
}

// plainQuotes replaces the quotes that word processors and web pages write.
var plainQuotes = strings.NewReplacer("“", `"`, "”", `"`, "„", `"`, "‘", `"`, "’", `"`)

// quotingHint returns a hint for the end of a syntax error in a line such as order = shuffle, or
// "".
func quotingHint(line string) string {
	key, value, _ := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	isValid := func(value string) bool {
		_, err := toml.Decode("x = "+value, new(map[string]any))
		return err == nil
	}
	if plain := plainQuotes.Replace(value); plain != value && isValid(plain) {
		return fmt.Sprintf("; write plain quotes: %s = %s", key, plain)
	}
	_, rangeErr := strconv.ParseInt(value, 10, 64)
	switch lower := strings.ToLower(value); {
	case isValid(value) || key == "" || value == "" || strings.ContainsAny(value, "\"'“”‘’„[]{},=#"), strings.Trim(value, "0123456789") == ".",
		strings.ContainsFunc(value, unicode.IsControl), errors.Is(rangeErr, strconv.ErrRange):
		return ""
	case lower == "true" || lower == "false":
		return fmt.Sprintf("; write %s = %s", key, lower)
	case lower == "none" || lower == "null" || lower == "nil":
		return "; leave out a key that has no value"
	}
	return fmt.Sprintf("; strings need quotes: %s = %q", key, value)
}

// parseSet parses a --set argument. Strings need no quotes: a value that is not valid TOML is taken
// as a string, and so is any unquoted value, such as 0, if the key needs a string.
func parseSet(arg string) (*document, error) {
	name, value, ok := strings.Cut(arg, "=")
	// The value is set after parsing, because a path may contain control characters and bytes that
	// are not UTF-8, which TOML does not allow.
	unquoted, err := parse("", name+` = ""`)
	if !ok || err != nil || len(unquoted.keys) != 1 || strings.ContainsAny(name, "\r\n") {
		return nil, fmt.Errorf("--set %s: must be key=value, e.g. --set batch.seed=7", arg)
	}
	if !strings.ContainsAny(value, "\r\n") {
		// In a path such as 1#a.bin, TOML would take #a.bin for a comment. A value with a comment
		// is not valid in a list, because the comment includes the end of the list.
		_, inList := parse("", name+" = ["+value+"]")
		isQuoted := strings.IndexAny(strings.TrimSpace(value), "'\"[{") == 0
		if d, err := parse("", name+" = "+value); err == nil && (inList == nil || isQuoted) {
			if !isQuoted {
				d.word = strings.TrimSpace(value)
			}
			return d, nil
		}
		// A pattern of files may have several brackets.
		if v := strings.TrimSpace(value); strings.HasPrefix(v, "[") && strings.IndexAny(v[1:], "[]") == len(v)-2 {
			return nil, fmt.Errorf(`--set %s: strings in a list need quotes, which shells remove from an argument without quotes of its own, as in --set '%[1]s=["a", "b"]' (got %s)`, name, v)
		}
	}
	k := unquoted.keys[0]
	unquoted.value(k[:len(k)-1]).(map[string]any)[k[len(k)-1]] = value
	return unquoted, nil
}

// value returns the value of a key, or nil. A number in the key is an index into a list of tables.
func (d *document) value(k toml.Key) any {
	var v any = d.tree
	for _, name := range k {
		if table, ok := v.(map[string]any); ok {
			v = table[name]
			continue
		}
		list := tableList(v)
		i, err := strconv.Atoi(name)
		if err != nil || i >= len(list) {
			return nil
		}
		v = list[i]
	}
	return v
}

// tableList returns value as a list of tables, or nil if it is anything else.
func tableList(value any) (list []map[string]any) {
	if list, ok := value.([]map[string]any); ok {
		return list
	}
	values, _ := value.([]any) // an inline list is decoded as this type
	for _, v := range values {
		table, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		list = append(list, table)
	}
	return list
}

// relative resolves a path from the document. Paths in a file are relative to the file.
func (d *document) relative(path string) string {
	if d.name == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(d.name), path)
}

var unexpanded = regexp.MustCompile(`^~(/|$)|(^|/)\$([A-Z_][A-Z0-9_]*|\{\w+\})(/|$)`)

// CheckPath returns an error if a path has a ~ or a variable, which only a shell expands. A
// directory with this name would be created otherwise.
func CheckPath(path string) error {
	if !unexpanded.MatchString(path) {
		return nil
	}
	return fmt.Errorf("~ and variables are not expanded here: write the path out (got %q)", path)
}

// line returns the number of the line, from 1, on which the statement that sets k begins.
func (d *document) line(k toml.Key) int {
	for len(k) > 1 && d.value(k) == nil { // k is inside a value
		k = k[:len(k)-1]
	}
	begins, end := []int{0}, 0 // offsets of the statements, and of the line's end
	for line := range strings.Lines(d.text) {
		end += len(line)
		if strings.HasSuffix(strings.TrimSpace(line), ",") && !strings.Contains(line, "#") {
			// No statement ends on this line, and parsing a long list anew after each line would
			// take minutes.
			continue
		}
		if _, err := parse("", d.text[begins[len(begins)-1]:end]); err == nil {
			begins = append(begins, end)
		}
	}
	// Find the first statement that completes a text with the key.
	setBy := sort.Search(len(begins)-1, func(i int) bool {
		part, err := parse("", d.text[:begins[i+1]])
		return err == nil && part.value(k) != nil
	})
	return 1 + strings.Count(d.text[:begins[setBy]], "\n")
}

func formatValue(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case map[string]any:
		var list []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if _, ok := v[name].(map[string]any); ok {
				return "a table"
			}
			list = append(list, name+" = "+formatValue(v[name]))
		}
		return "{" + strings.Join(list, ", ") + "}"
	case inlineTable:
		return string(v)
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
