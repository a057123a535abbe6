package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"batchfs/cache/blob"
	"batchfs/internal/failure"
)

// Text returns the shortest configuration file that decodes to c. It has the keys that decide
// something, each with the first sentence of its help where it first occurs. Keys that all splits
// set to the same value are in [batch]. Paths that are relative in c stay relative to the working
// directory, so the file belongs there. It is an error if TOML cannot represent a string of c.
func (c *Config) Text() (string, error) {
	p := printer{explained: map[*key]bool{}}
	p.keys(c, &topTable, differs(c, Default()))

	inBatch := map[string]bool{}
	for i := range batchTable.keys {
		k := &batchTable.keys[i]
		inBatch[k.name] = len(c.Splits) > 0 && !slices.ContainsFunc(c.Splits, func(s *Split) bool {
			return !s.mustSet(k) || !reflect.DeepEqual(k.get(s), k.get(c.Splits[0]))
		})
	}
	p.begin("[batch]")
	if len(c.Splits) > 0 {
		p.keys(c.Splits[0], &batchTable, func(k *key) bool { return inBatch[k.name] })
	}
	for _, s := range c.Splits {
		p.split(s.withPaths(), inBatch)
	}

	d := Default()
	for _, t := range []struct {
		table       *table
		c, defaults any
	}{{&memoryTable, &c.Memory, &d.Memory}, {&mountTable, &c.Mount, &d.Mount}, {&storeTable, &c.Store, &d.Store}, {&logTable, &c.Log, &d.Log}} {
		p.begin(t.table.name)
		p.keys(t.c, t.table, differs(t.c, t.defaults))
	}
	return strings.TrimPrefix(p.text.String(), "\n"), failure.Config.Wrap(p.err)
}

// differs returns a function that reports whether a key has different values in c and d.
func differs(c, d any) func(*key) bool {
	return func(k *key) bool { return k.set != nil && !reflect.DeepEqual(k.get(c), k.get(d)) }
}

// mustSet reports whether a file must set a key of s: if its value differs from the default, or if
// it is set and its default depends on the token files.
func (s *Split) mustSet(k *key) bool {
	return differs(s, defaultSplit())(k) || k.set != nil && k.initial == nil && s.IsSet(k.name)
}

// withPaths returns a copy of s with paths and globs that are relative to the working directory, or
// absolute.
func (s *Split) withPaths() *Split {
	n := *s
	n.dir, n.alignedDir = "", ""
	n.Tokens, n.Aligned = blob.JoinAll(s.dir, s.Tokens), withPaths(s.alignedDir, s.Aligned)
	n.Sources = slices.Clone(s.Sources)
	for i, source := range n.Sources {
		n.Sources[i].Tokens, n.Sources[i].Aligned = blob.JoinAll(s.dir, source.Tokens), withPaths(s.dir, source.Aligned)
	}
	return &n
}

func withPaths(dir string, arrays []AlignedArray) []AlignedArray {
	arrays = slices.Clone(arrays)
	for i := range arrays {
		arrays[i].Files = blob.JoinAll(dir, arrays[i].Files)
	}
	return arrays
}

// A printer collects the text of a configuration file.
type printer struct {
	text      strings.Builder
	header    string // header of the table, if none of its keys has been printed
	explained map[*key]bool
	err       error // the first one
}

// begin begins a table. Its header is printed only if it has keys.
func (p *printer) begin(header string) { p.header = "\n" + header + "\n" }

func (p *printer) split(s *Split, inBatch map[string]bool) {
	name := toml.Key{"splits", s.Name}.String()
	own := func(k *key) bool { return !inBatch[k.name] && s.mustSet(k) }
	p.begin("[" + name + "]")
	p.keys(s, &splitTable, own)
	p.keys(s, &batchTable, own)
	p.arrays(name, s.Aligned)
	for i := range s.Sources {
		source := &s.Sources[i]
		p.begin("[[" + name + ".sources]]")
		isSet := differs(source, &Source{Name: strconv.Itoa(i)})
		p.keys(source, &sourceTable, func(k *key) bool { return isSet(k) || k.name == "weight" && len(s.StageTables) == 0 })
		p.arrays(name+".sources", source.Aligned)
	}
	for i := range s.StageTables {
		p.begin("[[" + name + ".stages]]")
		p.keys(&s.StageTables[i], &stageTable, differs(&s.StageTables[i], &Stage{}))
	}
}

// arrays prints the list of aligned arrays of a split or a source. An empty list,
// unlike nil, serves no arrays.
func (p *printer) arrays(parent string, list []AlignedArray) {
	if list != nil && len(list) == 0 {
		p.line("arrays = []")
	}
	var none AlignedArray
	arrayTable.setDefaults(&none)
	for i := range list {
		p.begin("[[" + parent + ".arrays]]")
		p.keys(&list[i], &arrayTable, differs(&list[i], &none))
	}
}

// keys prints the keys of c, which t describes, that include selects.
func (p *printer) keys(c any, t *table, include func(*key) bool) {
	for i := range t.keys {
		k := &t.keys[i]
		if !include(k) {
			continue
		}
		if !p.explained[k] {
			p.line("# " + k.summary())
			p.explained[k] = true
		}
		value, err := formatTOML(k.get(c))
		p.err = cmp.Or(p.err, err)
		p.line(k.name + " = " + value)
	}
}

func (p *printer) line(text string) {
	p.text.WriteString(p.header + text + "\n")
	p.header = ""
}

// summary returns the first sentence of the help.
func (k *key) summary() string {
	paragraph, _, _ := strings.Cut(k.help, "\n")
	sentence, _, _ := strings.Cut(paragraph, ". ")
	return strings.TrimSuffix(sentence, ".") + "."
}

// formatTOML returns a value of a key as TOML.
func formatTOML(v any) (text string, err error) {
	quote := func(s string) string {
		if !utf8.ValidString(s) {
			err = cmp.Or(err, fmt.Errorf("a configuration file cannot contain %q, which is not UTF-8; rename the file, or set it with --set", s))
		}
		return quoteTOML(s)
	}
	switch v := v.(type) {
	case sizeText:
		if _, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return string(v), nil
		}
	case []string:
		var list []string
		for _, s := range v {
			list = append(list, quote(s))
		}
		if len(list) == 1 {
			return list[0], err
		}
		return "[" + strings.Join(list, ", ") + "]", err
	case []int:
		return strings.ReplaceAll(fmt.Sprint(v), " ", ", "), nil
	case float64:
		return formatNumber(v), nil
	case map[string]float64:
		var list []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list = append(list, toml.Key{name}.String()+" = "+formatNumber(v[name]))
		}
		return "{" + strings.Join(list, ", ") + "}", nil
	}
	if _, named := v.(fmt.Stringer); named || reflect.ValueOf(v).Kind() == reflect.String {
		return quote(fmt.Sprint(v)), err
	}
	return fmt.Sprint(v), nil
}

// formatNumber returns v without a fraction if it is a whole number that TOML's integers can hold.
func formatNumber(v float64) string {
	if math.Abs(v) < 1<<53 {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'e', -1, 64)
}

// quoteTOML returns a TOML string. It escapes what is invisible, so that it can be printed on a
// terminal.
func quoteTOML(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return `"` + b.String() + `"`
}
