package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

var update = flag.Bool("update", false, "write config.toml, and the list of settings in docs/files.md")

// head begins config.toml: six lines that work.
const head = `mountpoint = "/mnt/batches"    # an empty directory; batchfs mount MOUNTPOINT overrides it
[splits.train]                 # a directory there; any name, any number of them
tokens = "data/train.bin"      # a file, a glob, or a list of them
[splits.val]
tokens = "data/val.bin"
order = "sequential"           # a key of [batch], for this split only

# The other keys follow, with their defaults. A # stands before a key without a default, and before the keys of [splits.X].
#
#   batchfs mount -c config.toml
#   batchfs mount -c config.toml --set batch.seed=7 --set 'splits.train.tokens=["a.bin", "b.bin"]'
#
# --set sets any key over this file. A string needs no quotes there. Paths here are relative to this file, in --set to the working directory.
# A key marked [path] may also be set in a path: /mnt/batches/train/rank=3,world=8/next.
#
# Batch k is the same for ever and everywhere, while the split's name, tokens, sources, arrays, join and the keys of [batch] are, except vocab_size,
# start and steps. No other key changes a batch.
`

// reference is config.toml as the tables say it.
func reference() string {
	var b strings.Builder
	b.WriteString(head)
	for _, t := range allTables[1:] {
		fmt.Fprintf(&b, "\n\n# %s\n", strings.ReplaceAll(t.what, "\n", "\n# "))
		comment := ""
		if strings.Contains(t.name, "X") {
			comment = "# "
		}
		fmt.Fprintf(&b, "%s%s\n", comment, t.name)
		for _, k := range t.keys {
			value := k.initial
			if k.set == nil {
				continue // a table of its own
			}
			if value == nil {
				value, comment = k.example, "# "
			}
			mark := ""
			if k.inPath {
				mark = " [path]"
			}
			fmt.Fprintf(&b, "\n# %s: %s.%s\n", k.what, k.rule, mark)
			if k.when != "" {
				fmt.Fprintf(&b, "# %s\n", strings.ReplaceAll(k.when, "\n", "\n# "))
			}
			fmt.Fprintf(&b, "%s%s = %s\n", comment, k.name, show(value))
			if !strings.Contains(t.name, "X") {
				comment = ""
			}
		}
	}
	return b.String()
}

// matches fails the test if a file differs from what the tables say, or writes it with -update.
func matches(t *testing.T, file, got, want string) {
	t.Helper()
	if *update {
		testfiles.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	} else if got != want {
		t.Errorf("%s differs from the tables of keys.go: go test ./cmd/batchfs/config -run Reference -update writes it", file)
	}
}

// config.toml, and the list of settings in paths, are made from the tables of keys.
func TestReference(t *testing.T) {
	const file, page = "../../../config.toml", "../../../docs/files.md"
	text, err := os.ReadFile(file)
	testfiles.NoError(t, err)
	matches(t, file, string(text), reference())

	if text, err = os.ReadFile(page); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range batchTable.keys {
		if k.inPath {
			names = append(names, k.name)
		}
	}
	last := len(names) - 1
	list := "A path may set " + strings.Join(names[:last], ", ") + " and " + names[last] + ","
	matches(t, page, string(text), regexp.MustCompile(`A path may set .* and \w+,`).ReplaceAllString(string(text), list))
}

// Every example in config.toml is valid, and what stands there without a # is the default.
func TestReferenceIsValid(t *testing.T) {
	c, err := decodeText(reference())
	testfiles.NoError(t, err)
	want := Default()
	if c.Memory != want.Memory || c.Mount != want.Mount || c.Store != want.Store || c.Log != want.Log || c.Mountpoint != "/mnt/batches" || len(c.Splits) != 2 {
		t.Errorf("it sets\n%+v, the defaults are\n%+v", c, want)
	}
	for i, name := range []string{"train", "val"} {
		want := settings(defaultSplit())
		want.Name, want.Tokens, want.dir = name, []string{"data/" + name + ".bin"}, "."
		if name == "val" {
			want.Order = "sequential"
		}
		if got := settings(c.Splits[i]); !reflect.DeepEqual(got, want) {
			t.Errorf("split %s is\n%+v, the default\n%+v", name, got, want)
		}
	}
	live := regexp.MustCompile(`(?m)^# (\w+ = |\[)`).ReplaceAllString(reference(), "$1")
	if _, err := decodeText(strings.ReplaceAll(live, "splits.X.sources", "splits.mix.sources")); err != nil {
		t.Error(err)
	}
}
