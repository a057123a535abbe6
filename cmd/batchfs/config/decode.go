package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"

	"batchfs/cache"
	"batchfs/sampler"
)

// RawConfig is a configuration as it was written: the text of a file, and --set arguments over it. It can be kept, and decoded
// again without the file. Its fields are exported for encoders.
type RawConfig struct {
	File, Text string // both are empty where there is no file
	Sets       []string
}

// readRaw reads a configuration file, or none if the name is empty.
func readRaw(file string, sets []string) (RawConfig, error) {
	raw := RawConfig{File: file, Sets: sets}
	if file == "" {
		return raw, nil
	}
	text, err := os.ReadFile(file)
	raw.Text = string(text)
	return raw, err
}

// Decode returns the configuration, which has at least one split. The error names the key that is wrong, where it stands, and
// what it must be.
func (r RawConfig) Decode() (*Config, error) {
	c, err := r.decode()
	if err == nil && len(c.Splits) == 0 {
		err = fmt.Errorf("%s: no splits; at least one is needed, e.g.\n[splits.train]\ntokens = \"data/train.bin\"", r.File)
	}
	return c, err
}

func (r RawConfig) decode() (*Config, error) {
	var docs []*document
	if r.File != "" {
		d, err := parse(r.File, r.Text)
		if err != nil {
			return nil, err
		}
		docs = append(docs, d)
	}
	for _, arg := range r.Sets {
		d, err := parseSet(arg)
		if err != nil {
			return nil, err
		}
		docs = append(docs, d)
	}
	return decode(docs)
}

// decode merges the documents, later ones over earlier ones. Keys of [batch] are decoded before any split, because each split
// begins with their values.
func decode(docs []*document) (*Config, error) {
	c, batch := Default(), defaultSplit()
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
	c.setRemote()
	c.Tables = sampler.NewTables(c.Shares().Tables)
	for _, s := range c.Splits {
		s.Tables = c.Tables
		s.settle()
		if err := s.check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// settle sets what follows from several keys.
func (s *Split) settle() {
	s.Settings.Arrays = nil
	for _, b := range s.BesideOf(0) {
		s.Settings.Arrays = append(s.Settings.Arrays, sampler.Beside{Name: b.Name, At: b.At})
	}
	pieces := s.Rows != sampler.Windows
	switch {
	case s.EndOfText >= 0 && !s.FilesAreDocuments && !pieces:
		s.Ends = sampler.EndsByToken
	case s.Documents || s.MaskTargets || pieces:
		s.Ends = sampler.EndsByIndex
	}
	s.EOT = uint64(max(s.EndOfText, 0))
}

// WithFound returns the split with what lies beside its files where the configuration says nothing: the last token of each document, or
// -1, where the split asks for documents, and arrays of each source.
func (s *Split) WithFound(eot int64, arrays [][]Beside) *Split {
	n := *s
	if !s.Wrote("eot") && s.Ends != sampler.EndsUnknown {
		n.EndOfText = eot
	}
	switch {
	case s.WroteArrays() || len(arrays) == 0:
	case len(s.Sources) == 0:
		n.Beside = arrays[0]
	default:
		n.Sources = slices.Clone(s.Sources)
		for i := range arrays {
			n.Sources[i].Beside = arrays[i]
		}
	}
	n.settle()
	return &n
}

func (c *Config) decodeKey(d *document, k toml.Key, batch *Split) error {
	at, v := origin{d, k}, d.value(k)
	_, isTable := v.(map[string]any)
	if len(k) >= 2 && k[0] == "splits" {
		if err := checkName(k[1]); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	switch {
	case len(k) == 1 && k[0] == "mountpoint":
		s, ok := v.(string)
		if !ok || s == "" {
			return fmt.Errorf("%s: must be a path (got %s)", at, show(v))
		}
		c.Mountpoint = d.relative(s)
		return nil
	case len(k) == 1 && slices.Contains([]string{"batch", "splits", "memory", "mount", "store", "log"}, k[0]), len(k) == 2 && k[0] == "splits":
		if !isTable {
			return fmt.Errorf("%s: must be a table, [%s] (got %s)", at, k, show(v))
		}
		if len(k) == 2 {
			c.split(at, batch)
		}
		return nil
	case len(k) == 2 && k[0] == "batch":
		return setKey(at, at.resolved(v), batch, batch.origins, sequenceKeys, batchKeys)
	case len(k) == 2 && k[0] == "memory":
		return setKey(at, v, &c.Memory, nil, memoryKeys)
	case len(k) == 2 && k[0] == "mount":
		return setKey(at, v, &c.Mount, nil, mountKeys)
	case len(k) == 2 && k[0] == "store":
		return setKey(at, at.resolved(v), &c.Store, nil, storeKeys)
	case len(k) == 2 && k[0] == "log":
		return setKey(at, v, &c.Log, nil, logKeys)
	case len(k) == 3 && k[0] == "splits":
		s := c.split(at, batch)
		switch k[2] {
		case "tokens":
			s.dir = d.relative("")
		case "sources":
			s.dir = d.relative("")
			return s.setSources(at, v)
		case "arrays":
			s.besides, s.origins["arrays"] = d.relative(""), at
			return setBeside(at, v, &s.Beside)
		}
		return setKey(at, at.resolved(v), s, s.origins, sequenceKeys, batchKeys, splitKeys)
	case len(k) > 3 && k[0] == "splits" && (k[2] == "sources" || k[2] == "arrays"):
		if tables(d.value(k[:3])) == nil { // as in sources.weight = 1
			return fmt.Errorf("%s: unknown key; %s must be %s", at, k[2], listRule(k[:3]))
		}
		return nil // set with the list
	}
	return unknownKey(at, []string{"mountpoint", "[batch]", "[splits.X]", "[memory]", "[mount]", "[store]", "[log]"})
}

// checkName refuses names of splits that could not be directories of the mount, or would be ambiguous in a path.
func checkName(name string) error {
	switch {
	case name == "", len(name) > 100, strings.HasPrefix(name, "."), strings.ContainsAny(name, "/=,"), strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("a split's name must be 1 to 100 bytes, without / = , and control characters, and not begin with a dot (got %q)", name)
	case slices.Contains([]string{"README", "status.json", "metrics"}, name):
		return fmt.Errorf("a split's name must not be README, status.json or metrics, which are reserved (got %q)", name)
	}
	return nil
}

// split returns the split that a key names. One that is named for the first time begins as a copy of [batch].
func (c *Config) split(at origin, batch *Split) *Split {
	name := at.key[1]
	for _, s := range c.Splits {
		if s.Split == name {
			return s
		}
	}
	s := *batch
	s.Split, s.named, s.origins = name, at, maps.Clone(batch.origins)
	c.Splits = append(c.Splits, &s)
	return &s
}

// listRule says how to write a list of tables.
func listRule(k toml.Key) string {
	example := `{tokens = "a.bin", weight = 1}`
	if k[len(k)-1] == "arrays" {
		example = `{name = "mask", files = "mask.npy"}`
	}
	return fmt.Sprintf("tables, each [[%s]], or a list [%s]", withoutIndexes(k), example)
}

// setSources sets the sources from a list of tables, which replaces an earlier list.
func (s *Split) setSources(at origin, v any) error {
	s.Sources, s.origins["sources"] = nil, at
	delete(s.origins, "sources.arrays")
	return setTables(at, v, sourceKeys, []string{"tokens", "weight"}, func(of origin, table map[string]any) (*Source, error) {
		src := new(Source)
		beside, ok := table["arrays"]
		if !ok {
			return src, nil
		}
		delete(table, "arrays")
		s.origins["sources.arrays"] = of
		return src, setBeside(origin{of.doc, append(slices.Clone(of.key), "arrays")}, beside, &src.Beside)
	}, func(src *Source) { s.Sources = append(s.Sources, *src) })
}

// setBeside sets arrays beside tokens from a list of tables. An empty one says that there are none.
func setBeside(at origin, v any, list *[]Beside) error {
	*list = []Beside{}
	if none, ok := v.([]any); ok && len(none) == 0 {
		return nil
	}
	return setTables(at, v, arrayKeys, []string{"files", "name"}, func(origin, map[string]any) (*Beside, error) {
		return &Beside{At: sampler.AtY, Format: cache.AutoFormat}, nil
	}, func(b *Beside) { *list = append(*list, *b) })
}

// setTables decodes a list of tables, each of which must have some keys. begin makes what a table is decoded to; it may take
// keys from the table. add is called for each.
func setTables[C any](at origin, v any, keys map[string]key[C], must []string, begin func(origin, map[string]any) (*C, error), add func(*C)) error {
	list := tables(v)
	if len(list) == 0 {
		return fmt.Errorf("%s: must be %s (got %s)", at, listRule(at.key), show(v))
	}
	for i, table := range list {
		of := origin{at.doc, append(slices.Clone(at.key), strconv.Itoa(i))}
		table = maps.Clone(table)
		c, err := begin(of, table)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if err := setKey(origin{of.doc, append(slices.Clone(of.key), name)}, table[name], c, nil, keys); err != nil {
				return err
			}
		}
		for _, name := range must {
			if _, ok := table[name]; !ok {
				return fmt.Errorf("%s: must have %s, %s (got none)", of, name, keys[name].rule)
			}
		}
		add(c)
	}
	return nil
}

// resolved returns the value of a key. A path to one file becomes one that this process can open.
func (o origin) resolved(v any) any {
	if path, ok := v.(string); ok && path != "" && slices.Contains([]string{"torch_state", "cache_dir"}, o.key[len(o.key)-1]) {
		return o.doc.relative(path)
	}
	return v
}

// setKey sets the field of c that belongs to a key, which must be in one of known. It keeps the key's origin in origins, unless
// that is nil.
func setKey[C any](at origin, v any, c *C, origins map[string]origin, known ...map[string]key[C]) error {
	name := at.key[len(at.key)-1]
	var names []string
	for _, keys := range known {
		if key, ok := keys[name]; ok {
			if !key.set(c, v) {
				return fmt.Errorf("%s: must be %s (got %s)", at, key.rule, show(v))
			}
			if origins != nil {
				origins[name] = at
			}
			return nil
		}
		names = slices.AppendSeq(names, maps.Keys(keys))
	}
	slices.Sort(names)
	return unknownKey(at, names)
}

// unknownKey returns the error for a key that its table does not have. It names the table that has the key, or else lists
// names, the keys of this table.
func unknownKey(at origin, names []string) error {
	k := at.key
	name := k[len(k)-1]
	_, sequence := sequenceKeys[name]
	_, batch := batchKeys[name]
	_, split := splitKeys[name]
	_, source := sourceKeys[name]
	_, beside := arrayKeys[name]
	_, memory := memoryKeys[name]
	_, mount := mountKeys[name]
	_, store := storeKeys[name]
	_, log := logKeys[name]
	var home string
	switch {
	case sequence, batch:
		home = "in [batch] or [splits.X]"
	case split, name == "sources", name == "arrays":
		home = "in [splits.X]"
	case source:
		home = "in [[splits.X.sources]]"
	case beside:
		home = "in [[splits.X.arrays]]"
	case memory:
		home = "in [memory]"
	case mount:
		home = "in [mount]"
	case store:
		home = "in [store]"
	case log:
		home = "in [log]"
	case name == "mountpoint":
		home = "above the first [table]"
	default:
		if len(k) == 3 && k[0] == "splits" {
			names = slices.Sorted(slices.Values(append(names, "arrays", "sources")))
		}
		return fmt.Errorf("%s: unknown key; must be one of %s", at, strings.Join(names, ", "))
	}
	return fmt.Errorf("%s: unknown key; %s must stand %s", at, name, home)
}
