package prepare

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/vocabulary"
)

func readItems(t *testing.T, file string, o ItemOptions) (found []string, encodings [][][]uint32, err error) {
	t.Helper()
	items, err := OpenItems(file, o, strings.NewReader("{\"text\": \"of standard input\"}\n"))
	if err != nil {
		return nil, nil, err
	}
	err = items.Read(t.Context(), func(item Item) error {
		found = append(found, fmt.Sprintf("%s %d %s", item.Unit, item.Number, item.Text))
		encodings = append(encodings, item.Encodings)
		return nil
	})
	return found, encodings, err
}

// Every format of prepare is a list of items with the numbers of their lines or rows, however the
// file is cut.
func TestItems(t *testing.T) {
	useSmallChunks(t, 64, maxLine)
	documents := []string{"first", " of two\nlines ", "", "\tlast\xff"}
	var long []string
	for i := range 100 {
		long = append(long, fmt.Sprint("text ", i))
	}
	testfiles.WriteHere(t, map[string]string{
		"a.txt":   "first\n\n  of two \r\n\nlast\xff",
		"b.jsonl": `{"q": {"t": "first"}}` + "\n\n" + `{"q.t": " of two\nlines "}` + "\n" + `{"q": {"t": ""}}`,
		"c.arrow": arrowOfTexts(t, documents), "d.parquet": parquetOf(t, documents), "e.gz": gzipped(strings.Join(long, "\n")),
		"bad.jsonl": `{"a": 7}`, "bad.csv": "a,b\n", "dir/a": "", "dir/b": "",
	})
	for i := range long {
		long[i] = fmt.Sprintf("line %d text %d", i+1, i)
	}
	rows := []string{"row 1 first", "row 2 of two\nlines", "row 3 ", "row 4 last\ufffd"}
	for _, test := range []struct {
		file, field, as string
		want            []string
		err             string
	}{
		{"a.txt", "text", "", []string{"line 1 first", "line 3 of two", "line 5 last\ufffd"}, ""},
		{"b.jsonl", "q.t", "", []string{"line 1 first", "line 3 of two\nlines", "line 4 "}, ""},
		{"c.arrow", "text", "", rows, ""},
		{"d.parquet", "text", "", rows, ""},
		{"e.gz", "text", "", long, ""},
		{"-", "text", "jsonl", []string{"line 1 of standard input"}, ""},
		{"bad.csv", "text", "text", []string{"line 1 a,b"}, ""},
		{"bad.csv", "text", "", nil, "bad.csv: is a CSV table"},
		{"bad.jsonl", "q", "", nil, `bad.jsonl: line 1: has no field q: choose one with --field; there are ["a"]`},
		{"dir", "text", "", nil, "dir: must be one file (got 2)"},
		{"a.txt", "text", "csv", nil, "--as: must be text, jsonl, parquet or arrow"},
	} {
		got, _, err := readItems(t, test.file, ItemOptions{By: "byte", As: test.as, Field: test.field})
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) || strings.Contains(err.Error(), "--invalid") {
				t.Errorf("%s: error %v, want %s, and no option of prepare alone", test.file, err, test.err)
			}
		} else if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.file, got, err, test.want)
		}
	}
}

// The tokens of an item, except two at each end, are among those of every text with a copy of it,
// whatever precedes and follows the copy.
func TestEncodingsOfItems(t *testing.T) {
	for _, by := range []string{"gpt2", "cl100k", "o200k"} {
		opened, err := tokenizers[by]()
		testfiles.NoError(t, err)
		w := &encodeWorker{encoder: opened.NewEncoder()}
		for _, text := range []string{
			"Antidisestablishmentarianism and pseudopseudohypoparathyroidism are words that nobody uses in a text",
			"Señor Álvarez compró 1234 manzanas en el mercado de Zürich por 15,50 € ayer por la tarde",
			"2+2=4, 3+3=6, 17*23=391, 1024/16=64, and so on, until 99999999 is reached",
			"東京都の人口は約1400万人で、日本の総人口の約11パーセントを占めています。",
			"Привет, как дела? Сегодня хорошая погода, и мы идём гулять в парк с собакой",
			"def f(x):\n    return [y for y in x if y]\n\nprint(f([1, 2, 3]))",
		} {
			item := w.itemOf(place{"line", 1}, []field.Text{{Bytes: []byte(" " + text + "\n")}})
			isPartOf := func(tokens []uint32) bool {
				return slices.ContainsFunc(item.Encodings, func(e []uint32) bool {
					core := e[2 : len(e)-2]
					return slices.ContainsFunc(windowsOf(tokens, len(core)), func(window []uint32) bool { return slices.Equal(window, core) })
				})
			}
			for _, before := range []string{"", "it is ", "\n\n", "say \"", "yes (", "x\t", "**", "Q: ", "1. ", "<p>", "“", "_", "    ", "\r\n", "'", "—"} {
				for _, after := range []string{"", ".", "\n\n\n", "\"", ")", " a", "<", "...", "?\n", "'s"} {
					if tokens := w.encoder.Append(nil, []byte(before+text+after)); !isPartOf(tokens) {
						t.Errorf("%s: %q between %q and %q has the tokens %d, and by itself %d", by, text, before, after, tokens, item.Encodings)
					}
				}
			}
		}
	}
}

// windowsOf returns each n consecutive tokens.
func windowsOf(tokens []uint32, n int) (all [][]uint32) {
	for i := range len(tokens) - n + 1 {
		all = append(all, tokens[i:i+n])
	}
	return all
}

// The tokenizer is that of the manifest, and no other.
func TestTokenizerOfItems(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.txt": "abba zac"})
	prepared(t, "a.txt --by gpt2 --val 0 --out gpt2")
	prepared(t, "a.txt --by char --val 0 --out char")
	manifest := func(dir string) *vocabulary.Manifest {
		m, err := vocabulary.Read(dir+"/vocab.json", nil)
		testfiles.NoError(t, err)
		return m
	}
	custom, ids, misnamed := *manifest("gpt2"), *manifest("gpt2"), *manifest("gpt2")
	custom.Tokenizer, ids.Kind, misnamed.Kind, misnamed.Tokenizer = "mine", vocabulary.IDs, vocabulary.IDs, vocabulary.Char
	for _, test := range []struct {
		by   string
		m    *vocabulary.Manifest
		want string
		err  string
	}{
		{"", manifest("gpt2"), "[[48910 1976 330]", ""},
		{"gpt2", manifest("gpt2"), "[[48910 1976 330]", ""},
		{"gpt2", &custom, "[[48910 1976 330]", ""},
		{"gpt2", &ids, "[[48910 1976 330]", ""},
		{"", manifest("char"), "[[1 2 2 1 0 4 1 3]", ""},
		{"char", manifest("char"), "[[1 2 2 1 0 4 1 3]", ""},
		{"byte", nil, "[[97 98 98 97 32 122 97 99]", ""},
		{"", nil, "", "--by: name the tokenizer of the tokens, because no vocab.json is next to them"},
		{"", &custom, "", `--by: name the tokenizer of the tokens, a tokenizer.json or tekken.json, because vocab.json only says that it is "mine"`},
		{"", &misnamed, "", "--by char: "},
		{"char", nil, "", "--by char: the tokens have no vocab.json that lists characters"},
		{"cl100k", manifest("gpt2"), "", `--by cl100k: did not make the tokens, because their vocab.json is of "gpt2"`},
		{"byte", manifest("char"), "", `--by byte: did not make the tokens, because their vocab.json is of "char"`},
		{"gpt3", nil, "", "--by: must be char, byte, "},
	} {
		_, got, err := readItems(t, "a.txt", ItemOptions{By: test.by, Manifest: test.m})
		if test.err != "" && (err == nil || !strings.HasPrefix(err.Error(), test.err)) || test.err == "" && (err != nil || !strings.HasPrefix(fmt.Sprint(got[0]), test.want)) {
			t.Errorf("--by %q: %v, %v, want %s%s", test.by, got, err, test.want, test.err)
		}
	}
}
