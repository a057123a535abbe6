package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"

	"batchfs/cache"
	"batchfs/sampler"
)

// config is what config.toml and --set say, with the defaults for what they do not.
type config struct {
	Mountpoint string
	Memory     memory
	Splits     []*split // in the order in which they are first named
}

type memory struct {
	Access    cache.Access
	PageCache string
}

// split is one [splits.X], with the keys of [batch] where it has none of its own.
type split struct {
	sampler.Settings
	Tokens     []string // paths and globs, as written
	dir        string   // what they are relative to
	Join       bool
	TokenDType sampler.DType
	Start      uint64
	Steps      uint64 // 0: one epoch

	named place            // where the split was first named
	set   map[string]place // where each key was set
}

func defaults() (memory, *split) {
	return memory{Access: cache.Remap, PageCache: "keep"}, &split{
		Settings: sampler.Settings{
			BatchSize: 12, BlockSize: 1024, DType: sampler.Uint16, Layout: sampler.XY,
			Order: sampler.Random, Seed: 1337, Rank: 0, World: 1,
		},
		TokenDType: sampler.Uint16,
		set:        map[string]place{},
	}
}

// A key is one key of a table that is decoded to a C.
type key[C any] struct {
	must string // what its value must be
	set  func(c *C, value any) bool
}

var memoryKeys = map[string]key[memory]{
	"access":     choice(func(c *memory) *cache.Access { return &c.Access }, cache.Remap, cache.Advise, cache.Pread, cache.Map),
	"page_cache": choice(func(c *memory) *string { return &c.PageCache }, "keep", "drop"),
}

var batchKeys = map[string]key[split]{
	"batch_size":  whole(func(c *split) *int { return &c.BatchSize }, 1, sampler.MaxRows),
	"block_size":  whole(func(c *split) *int { return &c.BlockSize }, 1, sampler.MaxBlockSize),
	"token_dtype": choice(func(c *split) *sampler.DType { return &c.TokenDType }, sampler.Uint16, sampler.Uint32),
	"dtype": choice(func(c *split) *sampler.DType { return &c.DType },
		sampler.Uint16, sampler.Uint32, sampler.Int32, sampler.Int64, sampler.Native),
	"layout": choice(func(c *split) *sampler.Layout { return &c.Layout }, sampler.XY, sampler.WholeRows),
	"order":  choice(func(c *split) *sampler.Order { return &c.Order }, sampler.Random, sampler.Sequential),
	"seed":   whole(func(c *split) *uint64 { return &c.Seed }, 0, math.MaxInt64),
	"rank":   whole(func(c *split) *int { return &c.Rank }, 0, sampler.MaxRows-1),
	"world":  whole(func(c *split) *int { return &c.World }, 1, sampler.MaxRows),
	"start":  whole(func(c *split) *uint64 { return &c.Start }, 0, sampler.MaxBatches-1),
	"steps":  whole(func(c *split) *uint64 { return &c.Steps }, 1, sampler.MaxBatches),
}

// splitKeys are those that only a split has.
var splitKeys = map[string]key[split]{
	"tokens": {"a path, a glob, or a list of them", func(c *split, value any) bool {
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		c.Tokens = nil
		for _, v := range list {
			s, ok := v.(string)
			if !ok || s == "" {
				return false
			}
			c.Tokens = append(c.Tokens, s)
		}
		return len(c.Tokens) > 0
	}},
	"join": {"true or false", func(c *split, value any) (ok bool) {
		c.Join, ok = value.(bool)
		return ok
	}},
}

func whole[C any, N int | uint64](field func(*C) *N, least, most int64) key[C] {
	must := fmt.Sprintf("a whole number from %d to %d", least, most)
	return key[C]{must, func(c *C, value any) bool {
		n, ok := value.(int64)
		*field(c) = N(n)
		return ok && n >= least && n <= most
	}}
}

func choice[C any, S ~string](field func(*C) *S, of ...S) key[C] {
	words := make([]string, len(of))
	for i, s := range of {
		words[i] = string(s)
	}
	last := len(words) - 1
	must := strings.Join(words[:last], ", ") + " or " + words[last]
	return key[C]{must, func(c *C, value any) bool {
		s, ok := value.(string)
		*field(c) = S(s)
		return ok && slices.Contains(of, S(s))
	}}
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
	var table map[string]toml.Primitive
	meta, err := toml.Decode(d.text, &table)
	for _, name := range k[:len(k)-1] {
		var inner map[string]toml.Primitive
		err = errors.Join(err, meta.PrimitiveDecode(table[name], &inner))
		table = inner
	}
	var found toml.ParseError
	if err != nil || !errors.As(meta.PrimitiveDecode(table[k[len(k)-1]], &beacon{}), &found) {
		return 0
	}
	return d.lineOf(found)
}

// lineOf counts itself: the decoder's own number is of the end of a string of several lines, and one too low at the end
// of the text.
func (d *document) lineOf(e toml.ParseError) int {
	start := min(max(e.Position.Start, 0), len(d.text))
	return 1 + strings.Count(d.text[:start], "\n")
}

// loadConfig reads a configuration file, "" for none, and the --set arguments over it.
func loadConfig(file string, sets []string) (*config, error) {
	var docs []*document
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		d, err := parse(file, string(text))
		if err != nil {
			return nil, err
		}
		docs = append(docs, d)
	}
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
	mem, batch := defaults()
	c := &config{Memory: mem}
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
	case len(k) == 1 && (k[0] == "batch" || k[0] == "memory" || k[0] == "splits"), len(k) == 2 && k[0] == "splits":
		if !isTable {
			return fmt.Errorf("%s: must be a table, [%s] (got %s)", d.at(k), k, show(v))
		}
		if len(k) == 2 {
			c.split(place{d, k}, batch)
		}
		return nil
	case len(k) == 2 && k[0] == "batch":
		return setKey(d, k, v, batch, batch.set, batchKeys)
	case len(k) == 2 && k[0] == "memory":
		return setKey(d, k, v, &c.Memory, nil, memoryKeys)
	case len(k) == 3 && k[0] == "splits":
		s := c.split(place{d, k}, batch)
		if k[2] == "tokens" {
			s.dir = d.relative("")
		}
		return setKey(d, k, v, s, s.set, batchKeys, splitKeys)
	}
	return unknown(d, k, []string{"mountpoint", "[batch]", "[splits.X]", "[memory]"})
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
	_, batch := batchKeys[name]
	_, split := splitKeys[name]
	_, memory := memoryKeys[name]
	var home string
	switch {
	case batch:
		home = "in [batch] or [splits.X]"
	case split:
		home = "in [splits.X]"
	case memory:
		home = "in [memory]"
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

// check finds what only several keys together make wrong.
func (s *split) check() error {
	switch {
	case len(s.Tokens) == 0:
		return fmt.Errorf("%s: split %s must have tokens, e.g. tokens = \"data/%s.bin\" (got none)", s.where(), s.Split, s.Split)
	case s.Rank >= s.World:
		return fmt.Errorf("%s: must be below world, which is %d in splits.%s (got %d)", s.where("rank", "world"), s.World, s.Split, s.Rank)
	case s.BatchSize*s.World > sampler.MaxRows:
		return fmt.Errorf("%s: batch_size times world must be at most %d (got %d times %d in splits.%s)",
			s.where("batch_size", "world"), sampler.MaxRows, s.BatchSize, s.World, s.Split)
	}
	return nil
}

// where is the place of the first of keys that was set, or of the split.
func (s *split) where(keys ...string) string {
	at := s.named
	for _, k := range slices.Backward(keys) {
		if set, ok := s.set[k]; ok {
			at = set
		}
	}
	return at.d.at(at.k)
}

// files are the paths that Tokens name, globs in alphabetical order.
func (s *split) files() ([]string, error) {
	var files []string
	for _, pattern := range s.Tokens {
		path, glob := pattern, pattern
		if !filepath.IsAbs(pattern) {
			path, glob = filepath.Join(s.dir, pattern), filepath.Join(escapeGlob(s.dir), pattern)
		}
		// A file may have the characters of a glob in its name.
		if _, err := os.Lstat(path); err == nil || !strings.ContainsAny(pattern, `*?[`) {
			files = append(files, path)
			continue
		}
		matches, err := filepath.Glob(glob)
		if err != nil {
			return nil, fmt.Errorf("%s: must be a path or a glob: %w (got %q)", s.where("tokens"), err, pattern)
		}
		if len(matches) == 0 {
			return nil, fmt.Errorf("%s: must name files that exist (got %q, which matches none)", s.where("tokens"), path)
		}
		files = append(files, matches...)
	}
	for i, file := range files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		files[i] = abs
	}
	return files, nil
}
