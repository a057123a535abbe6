package config

import (
	"reflect"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/sampler"
)

// Aligned arrays of a split and of its sources can be written in any form of TOML, and have
// defaults.
func TestAlignedArrays(t *testing.T) {
	mask := AlignedArray{Name: "mask", Files: []string{"mask.npy"}, At: sampler.AtY, Format: "auto"}
	top := AlignedArray{Name: "top_k", Files: []string{"a.bin", "b-*.bin"}, At: sampler.AtX, DType: array.Float16, Shape: []int{4, 2}, Format: "headerless", Tensor: "t"}
	for text, want := range map[string][][]AlignedArray{
		`[splits.train]
tokens = "a.bin"
[[splits.train.arrays]]
name = "mask"
files = "mask.npy"
[[splits.train.arrays]]
name = "top_k"
files = ["a.bin", "b-*.bin"]
at = "x"
dtype = "float16"
shape = [4, 2]
format = "headerless"
tensor = "t"`: {{mask, top}},
		`splits.train = {tokens = "a.bin", arrays = [{name = "mask", files = "mask.npy"}]}`: {{mask}},
		`[[splits.train.sources]]
tokens = "a.bin"
weight = 1
[[splits.train.sources.arrays]]
name = "mask"
files = "mask.npy"
[[splits.train.sources]]
tokens = "b.bin"
weight = 1
arrays = [{name = "mask", files = "mask.npy"}]`: {{mask}, {mask}},
	} {
		c, err := decodeText(text)
		if err != nil {
			t.Errorf("%s:\n%v", text, err)
			continue
		}
		s := c.Splits[0]
		for i, list := range want {
			if got := s.AlignedOf(i); !reflect.DeepEqual(got, list) {
				t.Errorf("%s:\nsource %d has %+v, want %+v", text, i, got, list)
			}
		}
		for i, b := range s.Arrays {
			if b.Name != want[0][i].Name || b.At != want[0][i].At {
				t.Errorf("%s:\nthe sampler gets %+v", text, s.Arrays)
			}
		}
	}
}

// An error in an array's table, even in a nested table, names the line and the rule.
func TestErrorsOfArrays(t *testing.T) {
	array := func(lines ...string) string {
		return "[splits.train]\ntokens = \"a.bin\"\n[[splits.train.arrays]]\n" + strings.Join(lines, "\n")
	}
	source := func(lines ...string) string {
		return "[[splits.train.sources]]\ntokens = \"a.bin\"\nweight = 1\n[[splits.train.sources.arrays]]\n" + strings.Join(lines, "\n")
	}
	const name, files = `name = "mask"`, `files = "mask.npy"`
	var eleven []string
	for _, letter := range "abcdefghijk" {
		eleven = append(eleven, "[[splits.train.arrays]]", `name = "`+string(letter)+`"`, files)
	}
	for text, want := range map[string]string{
		array(name):                                                "config.toml:3: splits.train.arrays.0: must have files, a path, a glob",
		array(files):                                               "config.toml:3: splits.train.arrays.0: must have name, 1 to 32 letters",
		array(name, files, `at = "z"`):                             `config.toml:6: splits.train.arrays.0.at: must be x or y (got "z")`,
		array(name, files, `shape = [0]`):                          `config.toml:6: splits.train.arrays.0.shape: must be a list of positive whole numbers`,
		array(name, files, `shape = [65536, 65536]`):               `config.toml:6: splits.train.arrays.0.shape: must be a list`,
		array(name, files, `shpe = [3]`):                           `config.toml:6: splits.train.arrays.0.shpe: unknown key; must be one of at, dtype, files, format, name, shape, tensor`,
		array(`name = "x"`, files):                                 `config.toml:4: splits.train.arrays.0.name: must be 1 to 32 letters`,
		array(`name = "__metadata__"`, files):                      `config.toml:4: splits.train.arrays.0.name: must be 1 to 32 letters`,
		array(`name = "`+strings.Repeat("a", 33)+`"`, files):       `config.toml:4: splits.train.arrays.0.name: must be 1 to 32 letters`,
		array(name, files, "[[splits.train.arrays]]", name, files): `config.toml:3: splits.train.arrays: two arrays have the name "mask"`,
		array(eleven[1:]...):                                       `config.toml:3: splits.train.arrays: must be at most 10 arrays (got 11)`,
		"[splits.train]\ntokens = \"a.bin\"\narrays = 3":           `config.toml:3: splits.train.arrays: must be a list of tables, as in [{name = "mask", files = "mask.npy"}] (got 3)`,
		"[splits.train.arrays]\nname = 3":                          `config.toml:1: splits.train.arrays: must be a list of tables`,

		source(name, files, `at = "z"`): `config.toml:7: splits.train.sources.0.arrays.0.at: must be x or y (got "z")`,
		source(name, files, "[[splits.train.sources]]", `tokens = "b.bin"`, "weight = 1", "[[splits.train.sources.arrays]]", name, files, `at = 1`):   `config.toml:13: splits.train.sources.1.arrays.0.at: must be x or y (got 1)`,
		source(name, files, "[[splits.train.sources]]", `tokens = "b.bin"`, "weight = 1"):                                                             `config.toml:1: splits.train.sources: source 1 has the arrays [], source 0 has [mask at y]; all sources must have the same arrays in the same order`,
		source(name, files, "[[splits.train.sources]]", `tokens = "b.bin"`, "weight = 1", "[[splits.train.sources.arrays]]", `name = "mask2"`, files): `config.toml:1: splits.train.sources: source 1 has the arrays [mask2 at y], source 0 has [mask at y]`,
		source(name, files, "[[splits.train.arrays]]", name, files):                                                                                   `config.toml:7: splits.train.arrays: split train has sources; list the arrays of each source in [[splits.train.sources.arrays]]`,
	} {
		wantError(t, want, text)
	}
}
