package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"

	"batchfs/internal/failure"
	"batchfs/sampler"
)

// A RawConfig is a configuration as the user wrote it: the text of a file, and --set arguments that
// override it.
type RawConfig struct {
	File, Text string // path and text of the file; both are empty if there is none
	Sets       []string
}

// Decode returns the configuration, which has at least one split. The error names the line, the key
// and the rule that its value breaks.
func (r RawConfig) Decode() (*Config, error) {
	c, err := r.decode("")
	if err == nil && len(c.Splits) == 0 {
		err = fmt.Errorf("%s: no splits; at least one is needed, as in splits.train.tokens = \"data/train.bin\"", r.File)
	}
	return c, failure.Config.Wrap(err)
}

// decode decodes the split called only, which need not exist, or all splits if only is empty.
func (r RawConfig) decode(only string) (*Config, error) {
	docs, err := r.documents()
	if err != nil {
		return nil, err
	}
	c, batch := Default(), defaultSplit()
	// Decode the splits last, because each begins as a copy of [batch].
	for _, inSplits := range []bool{false, true} {
		for _, d := range docs {
			for _, k := range d.keys {
				isSkipped := only != "" && k[0] == "splits" && len(k) > 1 && k[1] != only
				if (k[0] == "splits") == inSplits && !isSkipped {
					err = cmp.Or(err, c.decodeKey(d, k, batch))
				}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	for _, s := range c.Splits {
		s.storeBlock = c.Store.BlockBytes
		s.setDerived()
		if err := s.check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// documents parses the file and the --set arguments. Later documents override earlier ones.
func (r RawConfig) documents() (docs []*document, err error) {
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
	return docs, nil
}

// setDerived computes the sampler's settings that depend on several keys.
func (s *Split) setDerived() {
	s.Arrays = nil
	for _, b := range s.AlignedOf(0) {
		s.Arrays = append(s.Arrays, sampler.AlignedArray{Name: b.Name, At: b.At})
	}
	s.setMixture()
	s.HasEOT, s.EOT, s.BOS = s.EndOfText >= 0, uint64(max(s.EndOfText, 0)), nil
	if s.BeginOfText >= 0 {
		s.BOS = new(uint64(s.BeginOfText))
	}
}

// setMixture computes the sampler's settings that depend on the sources and stages. Without
// sources, they are empty.
func (s *Split) setMixture() {
	s.Only, s.Weights, s.Stages, s.MaxEpochs = s.sourceIndex(s.Source)+1, nil, nil, nil
	for i, source := range s.Sources {
		if len(s.StageTables) == 0 {
			s.Weights = append(s.Weights, source.Weight)
		}
		if source.MaxEpochs > 0 && s.MaxEpochs == nil {
			s.MaxEpochs = make([]float64, len(s.Sources))
		}
		if source.MaxEpochs > 0 {
			s.MaxEpochs[i] = source.MaxEpochs
		}
	}
	for _, table := range s.StageTables {
		stage := sampler.Stage{FirstRow: table.FromRow, FromTokens: table.FromTokens}
		for _, source := range s.Sources {
			stage.Weights = append(stage.Weights, table.Weights[source.Name])
		}
		s.Stages = append(s.Stages, stage)
	}
}

// WithFoundSettings returns the split with settings that were found next to its files: eot, the
// last token of each document (-1 if there is none), and the arrays of each source. It keeps those
// that the configuration sets.
func (s *Split) WithFoundSettings(eot int64, arrays [][]AlignedArray) *Split {
	n := *s
	if !s.IsSet("eot") && s.UsesDocuments() {
		n.EndOfText = eot
	}
	switch {
	case s.ArraysAreSet() || len(arrays) == 0:
	case len(s.Sources) == 0:
		n.Aligned = arrays[0]
	default:
		n.Sources = slices.Clone(s.Sources)
		for i := range arrays {
			n.Sources[i].Aligned = arrays[i]
		}
	}
	n.setDerived()
	return &n
}

// decodeKey decodes key k of a document into c, or into batch for a key of [batch].
func (c *Config) decodeKey(d *document, k toml.Key, batch *Split) error {
	ref, v := keyRef{d, k}, d.value(k)
	if k[0] == "splits" && len(k) > 1 {
		if err := checkName(k[1]); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
	}
	targets := map[string]any{"batch": batch, "memory": &c.Memory, "mount": &c.Mount, "store": &c.Store, "log": &c.Log, "splits": nil}
	target, known := targets[k[0]]
	switch {
	case known && (len(k) == 1 || len(k) == 2 && k[0] == "splits"):
		if _, isTable := v.(map[string]any); !isTable {
			return fmt.Errorf("%s: must be a table, [%s] (got %s)", ref, k, formatValue(v))
		}
		if len(k) == 2 {
			c.findOrAddSplit(ref, batch)
		}
		return nil
	case len(k) == 1 && k[0] == "mountpoint":
		return setKey(ref, v, c, nil, &topTable)
	case len(k) == 2 && k[0] == "batch":
		return setKey(ref, v, batch, batch.keyRefs, &batchTable)
	case len(k) == 2 && known:
		i := slices.IndexFunc(allTables, func(t *table) bool { return t.name == "["+k[0]+"]" })
		return setKey(ref, v, target, nil, allTables[i])
	case len(k) == 3 && k[0] == "splits":
		return c.findOrAddSplit(ref, batch).decodeKey(ref, v)
	case len(k) > 3 && k[0] == "splits" && listRules[k[2]] != "":
		if tableList(d.value(k[:3])) == nil { // for example sources.weight = 1
			return fmt.Errorf("%s: unknown key; %s must be %s", ref, k[2], listRules[k[2]])
		}
		return nil // decoded together with the whole list
	}
	return unknownKey(ref, []string{"mountpoint", "[batch]", "[splits.X]", "[memory]", "[mount]", "[store]", "[log]"})
}

func (s *Split) decodeKey(ref keyRef, v any) (err error) {
	switch ref.key[2] {
	case "tokens":
		s.dir = ref.doc.relative("")
	case "sources":
		s.dir = ref.doc.relative("")
		return s.setSources(ref, v)
	case "stages":
		s.keyRefs["stages"] = ref
		s.StageTables, err = decodeTables[Stage](ref, v, &stageTable, "weights")
		return err
	case "arrays":
		s.alignedDir, s.keyRefs["arrays"] = ref.doc.relative(""), ref
		return setAligned(ref, v, &s.Aligned)
	}
	return setKey(ref, v, s, s.keyRefs, &batchTable, &splitTable)
}

func checkName(name string) error {
	switch {
	case name == "", len(name) > 100, strings.HasPrefix(name, "."), strings.ContainsAny(name, "/=,"), strings.ContainsFunc(name, unicode.IsControl),
		name == "README", name == "status.json", name == "metrics":
		return fmt.Errorf("a split's name must be 1 to 100 bytes without / = , and control characters, must not begin with a dot, and must not be "+
			"README, status.json or metrics (got %q)", name)
	}
	return nil
}

// findOrAddSplit returns the split that a key names. A new split begins as a copy of [batch].
func (c *Config) findOrAddSplit(ref keyRef, batch *Split) *Split {
	if s, err := c.Named(ref.key[1]); err == nil {
		return s
	}
	s := *batch
	s.Name, s.firstMention, s.keyRefs = ref.key[1], ref, maps.Clone(batch.keyRefs)
	c.Splits = append(c.Splits, &s)
	return &s
}

// listRules holds the rules, for messages, of keys that take lists of tables.
var listRules = map[string]string{
	"sources": `a list of tables, as in [{tokens = "a.bin", weight = 1}]`,
	"stages":  `a list of tables, as in [{weights = {web = 9, math = 1}}]`,
	"arrays":  `a list of tables, as in [{name = "mask", files = "mask.npy"}]`,
}

func (s *Split) setSources(ref keyRef, v any) (err error) {
	s.keyRefs["sources"] = ref
	for _, key := range []string{"sources.arrays", "sources.weight", "sources.noweight"} {
		delete(s.keyRefs, key)
	}
	if s.Sources, err = decodeTables[Source](ref, v, &sourceTable, "tokens"); err != nil {
		return err
	}
	for i, table := range tableList(v) {
		s.Sources[i].Name = cmp.Or(s.Sources[i].Name, strconv.Itoa(i))
		key, found := "sources.noweight", ref.child(strconv.Itoa(i))
		if _, ok := table["weight"]; ok {
			key, found = "sources.weight", found.child("weight")
		}
		if !s.IsSet(key) {
			s.keyRefs[key] = found
		}
		if arrays, ok := table["arrays"]; ok {
			s.keyRefs["sources.arrays"] = ref.child(strconv.Itoa(i))
			if err := setAligned(ref.child(strconv.Itoa(i), "arrays"), arrays, &s.Sources[i].Aligned); err != nil {
				return err
			}
		}
	}
	return nil
}

func setAligned(ref keyRef, v any, list *[]AlignedArray) (err error) {
	if none, ok := v.([]any); ok && len(none) == 0 {
		*list = []AlignedArray{}
		return nil
	}
	*list, err = decodeTables[AlignedArray](ref, v, &arrayTable, "files", "name")
	return err
}

// decodeTables decodes v, a list of tables. They may have the given keys, and must have the
// required ones.
func decodeTables[C any](ref keyRef, v any, keys *table, required ...string) (all []C, err error) {
	list := tableList(v)
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: must be %s (got %s)", ref, listRules[ref.key[len(ref.key)-1]], formatValue(v))
	}
	for i, table := range list {
		var c C
		keys.setDefaults(&c)
		item := ref.child(strconv.Itoa(i))
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if err := setKey(item.child(name), table[name], &c, nil, keys); err != nil {
				return nil, err
			}
		}
		for _, name := range required {
			if _, ok := table[name]; !ok {
				return nil, fmt.Errorf("%s: must have %s, %s (got none)", item, name, keys.find(name).rule)
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// setKey sets the field of c for the key ref, which must be in one of the known tables. It records
// the key in refs, unless refs is nil.
func setKey(ref keyRef, v any, c any, refs map[string]keyRef, known ...*table) error {
	name := ref.key[len(ref.key)-1]
	var names []string
	for _, t := range known {
		k := t.find(name)
		if k == nil {
			for _, other := range t.keys {
				names = append(names, other.name)
			}
			continue
		}
		values, isList := v.([]any)
		if !isList {
			values = []any{v}
		}
		for _, v := range values {
			if path, isText := v.(string); isText {
				if err := CheckPath(path); err != nil {
					return fmt.Errorf("%s: %w", ref, err)
				}
			}
		}
		if path, isText := v.(string); k.isFile && isText && path != "" {
			v = ref.doc.relative(path)
		}
		isSet := k.set == nil || k.set(c, v) // the caller decodes lists of tables
		if word := ref.doc.word; !isSet && (word == "" || !k.set(c, word)) {
			return fmt.Errorf("%s: must be %s (got %s)", ref, k.rule, formatValue(v))
		}
		if refs != nil {
			refs[name] = ref
		}
		return nil
	}
	slices.Sort(names)
	return unknownKey(ref, names)
}

// unknownKey returns the error for a key that its table does not have. It names the table that has
// the key, or else lists the keys of this table.
func unknownKey(ref keyRef, names []string) error {
	name := ref.key[len(ref.key)-1]
	for _, t := range allTables {
		home := t.name
		if t == &batchTable {
			home += " or [splits.X]"
		}
		if t.find(name) != nil {
			return fmt.Errorf("%s: unknown key; %s belongs in %s", ref, name, home)
		}
	}
	return fmt.Errorf("%s: unknown key; must be one of %s", ref, strings.Join(names, ", "))
}
