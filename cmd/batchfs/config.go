package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
)

// config is what config.toml and --set say, with the defaults for what they do not.
type config struct {
	Mountpoint string
	Memory     memory
	Mount      mountOptions
	Log        logOptions
	Splits     []*split // in the order in which they are first named
}

// A document is one source of settings: the file, or one --set.
type document struct {
	text string
	name string // of the file; empty for --set
	keys []toml.Key
	tree map[string]any
}

// A place is where a key stands.
type place struct {
	d *document
	k toml.Key
}

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
		return nil, fmt.Errorf("%s:%d: %s%s", name, d.lineOf(syntax), syntax.Message, hint)
	}
	d.keys = meta.Keys()
	return d, err
}

// parseSet reads one --set. Strings need no quotes: the value is taken as TOML if it is that, else as a string.
func parseSet(arg string) (*document, error) {
	name, value, ok := strings.Cut(arg, "=")
	// As text it would have to be UTF-8 without control characters, which a path need not be.
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

// value is what stands at a key.
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

// at names a key with its place, as the beginning of a message.
func (d *document) at(k toml.Key) string {
	if d.name == "" {
		return "--set " + k.String()
	}
	if line := d.line(k); line > 0 {
		return fmt.Sprintf("%s:%d: %s", d.name, line, k)
	}
	return fmt.Sprintf("%s: %s", d.name, k)
}

// A beacon fails to be decoded, which makes the decoder tell the place.
type beacon struct{}

func (*beacon) UnmarshalTOML(any) error { return errors.New("here") }

// line is that of a key in the text, or 0.
func (d *document) line(k toml.Key) int {
	text := d.text
	if len(k) > 3 && k[2] == "sources" {
		switch d.value(k[:3]).(type) {
		case []map[string]any: // of which the decoder knows only the last: make it that
			text, k = d.until(k), slices.Delete(slices.Clone(k), 3, 4)
		case []any:
			k = k[:3]
		}
	}
	var table map[string]toml.Primitive
	meta, err := toml.Decode(text, &table)
	for _, name := range k[:len(k)-1] {
		var inner map[string]toml.Primitive
		var several []map[string]toml.Primitive
		if meta.PrimitiveDecode(table[name], &several) == nil && len(several) > 0 {
			inner = several[len(several)-1]
		} else {
			err = errors.Join(err, meta.PrimitiveDecode(table[name], &inner))
		}
		table = inner
	}
	var found toml.ParseError
	if err != nil || !errors.As(meta.PrimitiveDecode(table[k[len(k)-1]], &beacon{}), &found) {
		return 0
	}
	return d.lineOf(found)
}

// until is the text up to the end of the value at a key.
func (d *document) until(k toml.Key) string {
	end := 0
	for line := range strings.Lines(d.text) {
		end += len(line)
		if part, err := parse("", d.text[:end]); err == nil && part.value(k) != nil {
			break
		}
	}
	return d.text[:end]
}

// lineOf counts itself: the decoder's own number is of the end of a string of several lines, and one too low at the end
// of the text.
func (d *document) lineOf(e toml.ParseError) int {
	start := min(max(e.Position.Start, 0), len(d.text))
	return 1 + strings.Count(d.text[:start], "\n")
}

// written is a configuration as it was written: a file, whose name is empty where there is none, and --set arguments over it.
type written struct {
	File, Text string
	Sets       []string
}

// readWritten reads a configuration file, "" for none.
func readWritten(file string, sets []string) (w written, err error) {
	w = written{File: file, Sets: sets}
	if file != "" {
		var text []byte
		text, err = os.ReadFile(file)
		w.Text = string(text)
	}
	return w, err
}

func (w written) decode() (*config, error) {
	var docs []*document
	if w.File != "" {
		d, err := parse(w.File, w.Text)
		if err != nil {
			return nil, err
		}
		docs = append(docs, d)
	}
	return decodeWith(docs, w.Sets)
}

// decodeWith is decode with --set arguments over the documents.
func decodeWith(docs []*document, sets []string) (*config, error) {
	for _, arg := range sets {
		d, err := parseSet(arg)
		if err != nil {
			return nil, err
		}
		docs = append(docs, d)
	}
	return decode(docs)
}

// decode merges the documents, later ones over earlier ones. Keys of [batch] come first, whatever their place, because
// the splits begin with them.
func decode(docs []*document) (*config, error) {
	c, batch := defaults()
	for _, inSplits := range []bool{false, true} {
		for _, d := range docs {
			for _, k := range d.keys {
				if (k[0] == "splits") != inSplits {
					continue
				}
				if err := c.decodeKey(d, k, batch); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, s := range c.Splits {
		if err := s.check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *config) decodeKey(d *document, k toml.Key, batch *split) error {
	v := d.value(k)
	_, isTable := v.(map[string]any)
	if len(k) >= 2 && k[0] == "splits" {
		if err := checkName(k[1]); err != nil {
			return fmt.Errorf("%s: %w", d.at(k), err)
		}
	}
	switch {
	case len(k) == 1 && k[0] == "mountpoint":
		s, ok := v.(string)
		if !ok || s == "" {
			return fmt.Errorf("%s: must be a path (got %s)", d.at(k), show(v))
		}
		c.Mountpoint = d.relative(s)
		return nil
	case len(k) == 1 && slices.Contains([]string{"batch", "splits", "memory", "mount", "log"}, k[0]), len(k) == 2 && k[0] == "splits":
		if !isTable {
			return fmt.Errorf("%s: must be a table, [%s] (got %s)", d.at(k), k, show(v))
		}
		if len(k) == 2 {
			c.split(place{d, k}, batch)
		}
		return nil
	case len(k) == 2 && k[0] == "batch":
		return setKey(d, k, d.resolved(k, v), batch, batch.set, sequenceKeys, batchKeys)
	case len(k) == 2 && k[0] == "memory":
		return setKey(d, k, v, &c.Memory, nil, memoryKeys)
	case len(k) == 2 && k[0] == "mount":
		return setKey(d, k, v, &c.Mount, nil, mountKeys)
	case len(k) == 2 && k[0] == "log":
		return setKey(d, k, v, &c.Log, nil, logKeys)
	case len(k) == 3 && k[0] == "splits":
		s := c.split(place{d, k}, batch)
		if k[2] == "tokens" || k[2] == "sources" {
			s.dir = d.relative("")
		}
		if k[2] == "sources" {
			return s.setSources(d, k, v)
		}
		return setKey(d, k, d.resolved(k, v), s, s.set, sequenceKeys, batchKeys, splitKeys)
	case len(k) > 3 && k[0] == "splits" && k[2] == "sources":
		if tables(d.value(k[:3])) == nil { // as in sources.weight = 1
			return fmt.Errorf("%s: unknown key; sources must be %s", d.at(k), sourcesMust(k[:3]))
		}
		return nil // came with the list
	}
	return unknown(d, k, []string{"mountpoint", "[batch]", "[splits.X]", "[memory]", "[mount]", "[log]"})
}

// split is the one that a key names, made of what [batch] says when it is first named.
func (c *config) split(at place, batch *split) *split {
	name := at.k[1]
	for _, s := range c.Splits {
		if s.Split == name {
			return s
		}
	}
	s := *batch
	s.Split, s.named, s.set = name, at, maps.Clone(batch.set)
	c.Splits = append(c.Splits, &s)
	return &s
}

func sourcesMust(k toml.Key) string {
	return fmt.Sprintf("tables, each [[%s]], or a list [{tokens = \"a.bin\", weight = 1}]", k)
}

// setSources sets what a list of tables says.
func (s *split) setSources(d *document, k toml.Key, v any) error {
	list := tables(v)
	if len(list) == 0 {
		return fmt.Errorf("%s: must be %s (got %s)", d.at(k), sourcesMust(k), show(v))
	}
	s.Sources, s.set[k[2]] = nil, place{d, k}
	for i, table := range list {
		var src source
		at := append(slices.Clone(k), strconv.Itoa(i))
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if err := setKey(d, append(at, name), table[name], &src, nil, sourceKeys); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sourceKeys)) {
			if _, ok := table[name]; !ok {
				return fmt.Errorf("%s: must have %s, %s (got none)", d.at(at), name, sourceKeys[name].must)
			}
		}
		s.Sources = append(s.Sources, src)
	}
	return nil
}

// resolved is a value of a key, which if it is a path to one file is made one that the process can open.
func (d *document) resolved(k toml.Key, v any) any {
	if path, ok := v.(string); ok && path != "" && k[len(k)-1] == "torch_state" {
		return d.relative(path)
	}
	return v
}

// relative makes a path in the document one that the process can open: paths in a file are relative to it.
func (d *document) relative(path string) string {
	if d.name == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(d.name), path)
}

func setKey[C any](d *document, k toml.Key, v any, c *C, set map[string]place, tables ...map[string]key[C]) error {
	name := k[len(k)-1]
	var known []string
	for _, table := range tables {
		if key, ok := table[name]; ok {
			if !key.set(c, v) {
				return fmt.Errorf("%s: must be %s (got %s)", d.at(k), key.must, show(v))
			}
			if set != nil {
				set[name] = place{d, k}
			}
			return nil
		}
		known = slices.AppendSeq(known, maps.Keys(table))
	}
	slices.Sort(known)
	return unknown(d, k, known)
}

// unknown says where a key that stands in the wrong table belongs, and of others what could stand in their place.
func unknown(d *document, k toml.Key, known []string) error {
	name := k[len(k)-1]
	_, sequence := sequenceKeys[name]
	_, batch := batchKeys[name]
	_, split := splitKeys[name]
	_, source := sourceKeys[name]
	_, memory := memoryKeys[name]
	_, mount := mountKeys[name]
	_, log := logKeys[name]
	if len(k) == 3 && k[0] == "splits" {
		known = append(known, "sources")
		slices.Sort(known)
	}
	var home string
	switch {
	case sequence, batch:
		home = "in [batch] or [splits.X]"
	case split, name == "sources":
		home = "in [splits.X]"
	case source:
		home = "in [[splits.X.sources]]"
	case memory:
		home = "in [memory]"
	case mount:
		home = "in [mount]"
	case log:
		home = "in [log]"
	case name == "mountpoint":
		home = "above the first [table]"
	default:
		return fmt.Errorf("%s: unknown key; must be one of %s", d.at(k), strings.Join(known, ", "))
	}
	return fmt.Errorf("%s: unknown key; %s must stand %s", d.at(k), name, home)
}

// show is a value as it would stand in the file.
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

// checkName refuses names of splits that could not be directories of the tree, now or with settings in their paths.
func checkName(name string) error {
	switch {
	case name == "", len(name) > 100, strings.HasPrefix(name, "."), strings.ContainsAny(name, "/=,"), strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("a split's name must be 1 to 100 bytes, without / = , and control characters, and not begin with a dot (got %q)", name)
	case slices.Contains([]string{"README", "status.json", "metrics"}, name):
		return fmt.Errorf("a split's name must not be README, status.json or metrics, the files of every mount (got %q)", name)
	}
	return nil
}
