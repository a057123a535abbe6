package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/internal/testfiles"
)

func openArrays(t *testing.T, more string) []*Dataset {
	t.Helper()
	writeArrays(t, more)
	return mustOpenConfig(t)
}

// writeArrays writes a matrix, tokens with aligned arrays, a mixture of tokens, and a
// configuration. more holds further lines of [batch].
func writeArrays(t *testing.T, more string) {
	t.Helper()
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50, "b.bin": 30})
	testfiles.Write(t, map[string]string{"a.mask": strings.Repeat("\x00\x01\x01\x01\x00", 10), "a.top": strings.Repeat("top4", 50),
		"b.mask": strings.Repeat("\x01", 30), "b.top": strings.Repeat("4pot", 30)})
	const arrays = `
[[splits.%s.arrays]]
name = "mask"
files = "%[2]s.mask"
dtype = "bool"
[[splits.%[1]s.arrays]]
name = "top"
files = "%[2]s.top"
at = "x"
dtype = "float16"
shape = [2]
`
	source := func(name string) string {
		return fmt.Sprintf("[[splits.mix.sources]]\ntokens = '%s.bin'\nweight = 1\n", name) + fmt.Sprintf(arrays, "mix.sources", name)
	}
	testfiles.Write(t, map[string]string{"config.toml": testfiles.Small + more + `
[splits.rows]
tokens = ["a.bin", "b.bin"]
token_dtype = "float32"
dtype = "native"
shape = [5]
layout = "rows"
order = "shuffle"
[splits.beside]
tokens = "a.bin"
` + fmt.Sprintf(arrays, "beside", "a") + source("a") + source("b")})
}

// If any file of a split changes, even an aligned array, no byte of a batch is served.
func TestArrayThatChanges(t *testing.T) {
	for file, content := range map[string]string{"b.mask": strings.Repeat("\x00", 30), "b.top": strings.Repeat("pot4", 30), "b.bin": strings.Repeat("abcd", 30)} {
		all := openArrays(t, "")
		d := all[len(all)-1]
		mix := newMountedSequence(d, testWatcher(d), "", nil)
		for _, content := range []string{content, content[4:]} {
			replace(t, file, content)
			if _, err := checkAll(mix); !errors.Is(err, syscall.ESTALE) {
				t.Errorf("%s changed: error %v", file, err)
			}
		}
	}
}

func TestTextOfAnyTokens(t *testing.T) {
	for _, test := range []struct {
		dtype array.DType
		keys  string
		text  bool
	}{
		{array.Uint8, "vocab_size = 256", true}, {array.Int64, "", true}, {array.Int16, "", true}, {array.Float32, "layout = 'rows'", false},
	} {
		t.Chdir(t.TempDir())
		var raw []byte
		for i := range 4 {
			raw = append(raw, append([]byte{byte(i % 3)}, make([]byte, test.dtype.Size()-1)...)...)
		}
		testfiles.Write(t, map[string]string{"a.bin": string(raw), "vocab.json": chars})
		d := mustOpen(t, fmt.Sprintf("[splits.train]\ntokens = 'a.bin'\nbatch_size = 1\nblock_size = 3\norder = 'sequential'\ntoken_dtype = '%s'\n%s",
			test.dtype, test.keys))[0]
		var out bytes.Buffer
		must(t, d.Describe(&out, 0, 1000, nil))
		if got := out.String(); !strings.Contains(got, "row 0") || strings.Contains(got, "\n    abc\n") != test.text {
			t.Errorf("%s: %s", test.dtype, got)
		}
	}
}
