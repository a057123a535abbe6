package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

var update = flag.Bool("update", false, "write config.toml, and the list of settings in docs/files.md")

// head is the beginning of config.toml: a minimal configuration. The two %s stand for the help of
// mountpoint, and for the keys of [batch] that do not change a batch.
const head = `mountpoint = "/mnt/batches"    # %s
[splits.train]                 # becomes the directory train in the mount; add as many as you like
tokens = "data/train.bin"      # a file, a glob, or a list of them
[splits.val]
tokens = "data/val.bin"
order = "sequential"           # a key of [batch], for this split only

# That is enough to begin with. batchfs mount --data DIR --print-config prints such a file for the
# token files in DIR.
#
# All other keys follow with their defaults. Keys without a default are commented out, and so are
# the keys of [splits.X].
#
#   batchfs mount -c config.toml
#   batchfs mount -c config.toml --set batch.seed=7 --set 'splits.train.tokens=["a.bin", "b.bin"]'
#
# --set overrides any key of this file; strings need no quotes there. Paths in this file are
# relative to the file, paths in --set to the working directory; ~ and variables are not expanded. A
# key marked [path] can also be set in a path, as in /mnt/batches/train/rank=3,world=8/next. A key
# marked [advanced] rarely has to be set.
#
# Batch k never changes as long as these stay the same: the name of the split; its tokens, sources,
# stages, arrays and join; and the keys of [batch] except %s. No other key
# changes a batch.
`

// wrapComment returns text as a TOML comment, with lines of at most 100 bytes. It keeps line breaks
// and indentation.
func wrapComment(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n") {
		words := strings.TrimLeft(paragraph, " ")
		prefix := "#" + paragraph[:len(paragraph)-len(words)]
		line := prefix
		for word := range strings.FieldsSeq(words) {
			if len(line)+1+len(word) > 100 {
				b.WriteString(line + "\n")
				line = prefix
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func reference() string {
	var b strings.Builder
	var others []string
	for _, k := range batchTable.keys {
		if k.effect < OnReading {
			others = append(others, k.name)
		}
	}
	mountpoint := topTable.find("mountpoint").help
	fmt.Fprintf(&b, head, strings.ToLower(mountpoint[:1])+strings.TrimSuffix(mountpoint[1:], "."), enumerate(others))
	for _, t := range allTables[1:] {
		b.WriteString("\n\n" + wrapComment(t.help))
		comment := ""
		if strings.Contains(t.name, "X") {
			comment = "# "
		}
		fmt.Fprintf(&b, "%s%s\n", comment, t.name)
		for _, k := range t.keys {
			value := k.initial
			if k.set == nil {
				continue // a list of tables
			}
			if value == nil {
				value, comment = k.example, "# "
			}
			mark := ""
			if k.inPath {
				mark = " [path]"
			}
			if k.advanced {
				mark += " [advanced]"
			}
			b.WriteString("\n" + wrapComment(k.help+"\nMust be "+k.rule+"."+mark))
			fmt.Fprintf(&b, "%s%s = %s\n", comment, k.name, formatValue(value))
			if !strings.Contains(t.name, "X") {
				comment = ""
			}
		}
	}
	return b.String()
}

func enumerate(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

const regenerate = "go test ./cmd/batchfs/config -run Reference -update"

func TestReference(t *testing.T) {
	const file, page = "../../../config.toml", "../../../docs/files.md"
	testfiles.CheckGenerated(t, file, reference(), regenerate, *update)

	text, err := os.ReadFile(page)
	testfiles.NoError(t, err)
	var names []string
	for _, k := range batchTable.keys {
		if k.inPath {
			names = append(names, k.name)
		}
	}
	list := "A path may set " + enumerate(names) + ","
	text = regexp.MustCompile(`A path may set .* and \w+,`).ReplaceAll(text, []byte(list))
	testfiles.CheckGenerated(t, page, string(text), regenerate, *update)
}

// Every key has an effect. One that is added to a table without it would be missing in identities,
// saved states and the checks of restart.
func TestEveryKeyHasAnEffect(t *testing.T) {
	added := table{name: "[batch]", keys: append(slices.Clone(batchTable.keys), key{name: "added"})}
	if got := keysWithoutEffect(&added); !slices.Equal(got, []string{"[batch] added"}) {
		t.Errorf("with a key that has no effect, these have none: %q", got)
	}
	if missing := keysWithoutEffect(allTables...); missing != nil {
		t.Errorf("give these keys an effect (keys.go): %q", missing)
	}
	var applied []string
	for _, k := range mountTable.keys {
		if k.effect == OnNothing {
			applied = append(applied, k.name)
		}
	}
	if want := "restart applies only changes to " + enumerate(applied) + "."; !strings.HasSuffix(mountTable.help, want) {
		t.Errorf("the help of [mount] is %q, want %q at its end", mountTable.help, want)
	}
}

func keysWithoutEffect(tables ...*table) (names []string) {
	for _, t := range tables {
		for _, k := range t.keys {
			if k.effect == 0 {
				names = append(names, t.name+" "+k.name)
			}
		}
	}
	return names
}

// Every example in config.toml is valid, and every key that is not commented out has its default.
func TestReferenceIsValid(t *testing.T) {
	c, err := decodeText(reference())
	testfiles.NoError(t, err)
	want := Default()
	if c.Memory != want.Memory || c.Mount != want.Mount || c.Store != want.Store || c.Log != want.Log || c.Mountpoint != "/mnt/batches" || len(c.Splits) != 2 {
		t.Errorf("it sets\n%+v, the defaults are\n%+v", c, want)
	}
	for i, name := range []string{"train", "val"} {
		want := withoutLocations(defaultSplit())
		want.Name, want.Tokens, want.dir = name, []string{"data/" + name + ".bin"}, "."
		if name == "val" {
			want.Order = "sequential"
		}
		if got := withoutLocations(c.Splits[i]); !reflect.DeepEqual(got, want) {
			t.Errorf("split %s is\n%+v, the default\n%+v", name, got, want)
		}
	}
	live := regexp.MustCompile(`(?m)^# (\w+ = |\[)`).ReplaceAllString(reference(), "$1")
	// One is for mixtures only, one for rows of documents, and one replaces the weights of a
	// mixture.
	live = strings.Replace(live, "source = ", "# source = ", 1)
	live = strings.Replace(live, "\nbos = ", "\n# bos = ", 1)
	live = regexp.MustCompile(`(?s)\[\[splits.X.stages\]\].*(\[\[splits.X.arrays)`).ReplaceAllString(live, "$1")
	if _, err := decodeText(strings.ReplaceAll(live, "splits.X.sources", "splits.mix.sources")); err != nil {
		t.Error(err)
	}
}
