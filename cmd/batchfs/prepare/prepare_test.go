package prepare

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/vocabulary"
)

func runPrepare(ctx context.Context, args ...string) (string, error) {
	cmd := Command()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	pipelineGoroutines.Wait() // they read files that tests change
	return stdout.String() + stderr.String(), err
}

// wantError runs prepare and checks that its error contains want.
func wantError(t testing.TB, args, want string) {
	t.Helper()
	if said, err := runPrepare(t.Context(), strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("prepare %s: error %v (said %q), want one that says: %s", args, err, said, want)
	}
}

func readTokens(t testing.TB, path string) []uint16 {
	t.Helper()
	b, err := os.ReadFile(path)
	testfiles.NoError(t, err)
	tokens := make([]uint16, len(b)/2)
	if _, err := binary.Decode(b, binary.LittleEndian, tokens); err != nil || len(b)%2 != 0 {
		t.Fatalf("%s: %d bytes are no uint16 tokens: %v", path, len(b), err)
	}
	return tokens
}

func readManifest(t testing.TB) *vocabulary.Manifest {
	t.Helper()
	return readManifestOf(t, "out")
}

func readManifestOf(t testing.TB, dir string) *vocabulary.Manifest {
	t.Helper()
	m, err := vocabulary.Read(filepath.Join(dir, "vocab.json"), nil)
	if m == nil {
		t.Fatalf("no manifest: %v", err)
	}
	return m
}

func decoded(m *vocabulary.Manifest, tokens []uint16) string {
	var b strings.Builder
	for _, id := range tokens {
		b.WriteString(m.Text(int(id)))
	}
	return b.String()
}

// The package comment lists each file once, and no others.
func TestFilesInPackageComment(t *testing.T) {
	source, err := os.ReadFile("prepare.go")
	testfiles.NoError(t, err)
	comment, _, _ := strings.Cut(string(source), "\npackage ")
	files, err := filepath.Glob("*.go")
	testfiles.NoError(t, err)
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	if listed := slices.Sorted(slices.Values(regexp.MustCompile(`\w+\.go\b`).FindAllString(comment, -1))); !slices.Equal(listed, files) {
		t.Errorf("the package comment lists %q, want %q", listed, files)
	}
}

// checkPrepared checks that the tokens encode text, that they are numbered in the order of its
// sorted characters, and that val begins where nanoGPT's val does.
func checkPrepared(t *testing.T, text string) {
	t.Helper()
	v := readManifest(t)
	train, val := readTokens(t, "out/train.bin"), readTokens(t, "out/val.bin")
	if got := decoded(v, slices.Concat(train, val)); got != text {
		t.Errorf("decoded %q, want %q", got, text)
	}
	chars := []rune(text)
	if n := float64(len(chars)); len(train) != int(n*0.9) {
		t.Errorf("train has %d of %v tokens, want int(n*0.9)", len(train), n)
	}
	slices.Sort(chars)
	var want []string
	for _, r := range slices.Compact(chars) {
		want = append(want, string(r))
	}
	if v.Kind != "char" || v.Size != len(want) || !slices.Equal(v.Tokens, want) {
		t.Errorf("vocabulary %+v, want the characters %q", v, want)
	}
}

func wantOnlyFiles(t testing.TB, want ...string) {
	t.Helper()
	if names := slices.Sorted(maps.Keys(filesOf(t, "out"))); !slices.Equal(names, want) {
		t.Errorf("out holds %q, want %q", names, want)
	}
}

func TestPrepareGolden(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.txt": "ba<é\nb\"aab"})
	said := prepared(t, "a.txt --out out")
	for name, want := range map[string]string{
		"train.bin": "\x04\x00\x03\x00\x02\x00\x05\x00\x00\x00\x04\x00\x01\x00\x03\x00\x03\x00",
		"val.bin":   "\x04\x00",

		"train.bin.index": "\x09\x00\x00\x00\x00\x00\x00\x00",
		"vocab.json": `{
 "tokenizer": "char",
 "format": "headerless",
 "splits": {
  "train": {
   "tokens": 9,
   "documents": 1,
   "shards": [
    {
     "name": "train.bin",
     "tokens": 9,
     "documents": 1,
     "sha256": "349a569c197d7a550ae89bc2c3a1c8e8ffe9fc1699b3cd49e8baf57b719c7892"
    }
   ]
  },
  "val": {
   "tokens": 1,
   "documents": 1,
   "shards": [
    {
     "name": "val.bin",
     "tokens": 1,
     "documents": 1,
     "sha256": "c0ba8a33ac67f44abff5984dfbb6f56c46b880ac2b86e1f23e7fa9c402c53ae7"
    }
   ]
  }
 },
 "kind": "char",
 "vocab_size": 6,
 "token_dtype": "uint16",
 "eot_at": "none",
 "tokens": [
  "\n",
  "\"",
  "<",
  "a",
  "b",
  "é"
 ]
}
`,
	} {
		if got := filesOf(t, "out")[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if want := "out/train.bin: 9 tokens\nout/val.bin: 1 tokens\nout/vocab.json: vocabulary of 6 chars\n" +
		"next: batchfs mount --data out --set batch.block_size=8 MOUNTPOINT\n"; !strings.HasSuffix(said, "\n"+want) {
		t.Errorf("said %q, want at the end %q", said, want)
	}
	wantOnlyFiles(t, "train.bin", "train.bin.index", "val.bin", "val.bin.index", "vocab.json")
}

func TestPrepareBytes(t *testing.T) {
	var text []byte
	for i := range 1000 {
		text = append(text, byte(i*7))
	}
	testfiles.WriteHere(t, map[string]string{"a": string(text)})
	prepared(t, "a --by byte --as text --val 0.25 --out out")
	for i, id := range slices.Concat(readTokens(t, "out/train.bin")[:750], readTokens(t, "out/val.bin")) {
		if id != uint16(text[i]) {
			t.Fatalf("token %d is %d, want the byte's value %d", i, id, text[i])
		}
	}
	if m := readManifest(t); m.Kind != "byte" || m.Size != 256 || m.Tokens != nil {
		t.Errorf("vocab.json says %+v", m)
	}
}

func TestPrepareLargeVocabulary(t *testing.T) {
	var text []rune
	for r := rune(0x10000); r < 0x20000; r++ {
		text = append(text, r)
	}
	testfiles.WriteHere(t, map[string]string{"a": string(text), "b": string(text) + "b"})
	prepared(t, "a --out out")
	checkPrepared(t, string(text))
	prepared(t, "b --out large --val 0")
	if got := testfiles.Bytes(t, "large/train.bin", 4*(1<<16), 4); string(got) != "\x00\x00\x00\x00" {
		t.Errorf("the last token is %x, want 0, the first character's", got)
	}
}

func TestPrepareErrors(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		args string
		want string
	}{
		"invalid":         {"é\xff", "a", "a: not valid UTF-8 at byte 2: convert it to UTF-8, or use --invalid replace or skip, or --by byte"},
		"empty":           {"", "a", "--val: 0.1 of 0 characters leaves 0 for train and 0 for val: add text"},
		"short":           {"x", "a", "--val: 0.1 of 1 characters leaves 0 for train and 1 for val: add text"},
		"no val":          {"abc", "a --val 1e-17", "leaves 3 for train and 0 for val"},
		"missing":         {"abc", "b", "b: no such file"},
		"glob":            {"abc", "a *.txt", "*.txt: matches no file"},
		"hidden glob":     {"abc", "*hidden", "*hidden: matches no file"},
		"bad glob":        {"abc", "[", "[: syntax error in pattern"},
		"no files":        {"abc", "empty", "empty: no file in this directory"},
		"device":          {"abc", "/dev/null", "/dev/null: is not a regular file"},
		"by":              {"abc", "a --by word", `--by: must be char, byte, gpt2, cl100k, o200k or the path of a tokenizer.json or tekken.json (got "word"): there is no such file; hf download`},
		"val 1":           {"abc", "a --val 1", "--val: must be 0 or more and below 1, such as 0.1 (got 1)"},
		"as":              {"abc", "a --as csv", `--as: must be text, jsonl, parquet or arrow (got "csv")`},
		"invalid option":  {"abc", "a --invalid drop", `--invalid: must be error, replace or skip (got "drop")`},
		"eot":             {"abc", "a --eot middle", `--eot: must be end, begin or none (got "middle")`},
		"format":          {"abc", "a --format zip", `--format: must be headerless, llm.c, megatron, datatrove or npy (got "zip")`},
		"shard-tokens":    {"abc", "a --shard-tokens -1", "--shard-tokens: must be 0 or more (got -1)"},
		"mask":            {"abc", "a --mask a:2", `--mask: must list fields with 0 or 1, such as prompt:0,completion:1 or messages[role=assistant].content:1 (got "a:2")`},
		"mask twice":      {"abc", "a --mask p:0,a.*.b:1,p:1", `--mask: must list each field once (got p twice in "p:0,a.*.b:1,p:1")`},
		"include":         {"abc", "empty --include [", "--include [: syntax error in pattern"},
		"no include":      {"abc", "a empty --include *.md", "empty: no file in this directory matches --include *.md"},
		"no val document": {"abc", "a lines.jsonl --as text --val 1e-17", "for val, because documents are not divided: add documents, or use a larger --val, or --val 0"},
		"no document":     {"abc", "a lines.jsonl --as text --val 0.9999999", "for val, because documents are not divided: add documents, or use a smaller --val, or --val 0"},
		"no field":        {"abc", "lines.jsonl --field meta.body", "lines.jsonl: line 1: has no field meta.body: choose one with --field"},
		"no object":       {"abc", "lines.jsonl --field text.body", "lines.jsonl: line 1: text is not a JSON object: "},
		"no text":         {"abc", "lines.jsonl --field meta", "lines.jsonl: line 1: field meta is not a text but an object"},
		"bad line":        {"abc", "lines.jsonl", "lines.jsonl: line 4: not a JSON object: "},
		"not gzip":        {"\x1f\x8babcdefghijkl", "a", "a: its compressed data is damaged: gzip: invalid header"},
		"not zstd":        {"\x28\xb5\x2f\xfd\xff\xff", "a", "a: "},
		"not parquet":     {"abc", "a --as parquet", "a: "},
		"standard input":  {"abc", "-", "-: is not a regular file, and --by char, or val as the end of a single text, needs to read it twice: save it to a file first"},
		"piped text":      {"abc", "- --by byte", "-: is not a regular file, and --by char, or val as the end"},
		"no out":          {"abc", "a --out=", "--out: give the directory"},
		"out a file":      {"abc", "a --out a", "--out: "},
	} {
		t.Run(name, func(t *testing.T) {
			testfiles.WriteHere(t, map[string]string{"a": c.text, ".hidden": "abc", "empty/.hidden": "abc",
				"lines.jsonl": "{\"text\": \"a\", \"meta\": {}}\n\n{\"text\": null}\n{\"text\": \"cut"})
			wantError(t, "--out out "+c.args, c.want)
			wantOnlyFiles(t)
		})
	}
}

// The output of an earlier run is no text, even if it is in a directory of texts.
func TestPrepareIntoTexts(t *testing.T) {
	for _, test := range []struct{ texts, out string }{{"p", "p/data"}, {"p", "p"}, {"p/**", "p/data"}, {".", "p/data"}} {
		testfiles.WriteHere(t, map[string]string{"p/a.jsonl": textLine("one"), "p/b.jsonl": textLine("two")})
		args := test.texts + " --mask text:1 --id text --by byte --val 0 --out " + test.out
		prepared(t, args)
		if said := prepared(t, args); !strings.Contains(said, "is already complete") {
			t.Errorf("%s again: said %q", args, said)
		}
		testfiles.Write(t, map[string]string{"p/c.jsonl": textLine("three")})
		wantError(t, args, "already exists: replace it with --force")
		prepared(t, args+" --force")
		if got := decoded(readManifestOf(t, test.out), readTokens(t, test.out+"/train.bin")); got != "onetwothree" {
			t.Errorf("%s: tokens say %q", args, got)
		}
		wantError(t, test.out+"/vocab.json --by byte --val 0 --force --out "+test.out, "is both a text and an output file")
	}
}

func TestPrepareForce(t *testing.T) {
	for _, name := range []string{"train.bin", "val.bin", "vocab.json"} {
		t.Run(name, func(t *testing.T) {
			testfiles.WriteHere(t, map[string]string{"a": "abc", "bad": "abc\xff", "out/" + name: "mine", "out/other": "mine"})
			wantError(t, "a --out out", "out/"+name+": already exists: replace it with --force")
			wantError(t, "bad --out out --force", "not valid UTF-8")
			wantError(t, "out --as text --out out --force", "out/"+name+": is both a text and an output file")
			if got, _ := os.ReadFile("out/" + name); string(got) != "mine" {
				t.Errorf("out/%s is now %q", name, got)
			}
			prepared(t, "a --out out --force")
			checkPrepared(t, "abc")
			wantOnlyFiles(t, "other", "train.bin", "train.bin.index", "val.bin", "val.bin.index", "vocab.json")
		})
	}
}

func FuzzPrepare(f *testing.F) {
	for _, text := range []string{
		"", "x", "ab", "naïve\r\n", strings.Repeat("a", 20), "one\r\ntwo\rthree\nfour", "é\xff", "ab\xe2\x82", "ab\xed\xa0\x80",
		"naïve 数据 🚀 e\u0301 \u00e9 \ufffd \ufeff \u2028 \U0010ffff", "\\ \" \x00 \x7f </script> & '",
		// Some characters of three bytes straddle the ends of buffers, because no buffer size is a
		// multiple of 3.
		"x" + strings.Repeat("言葉は", 300_000) + "end",
	} {
		f.Add(text)
	}
	for n := 2; n < 120; n += 9 {
		f.Add(strings.Repeat("ab", n)[:n])
	}
	f.Fuzz(func(t *testing.T, text string) {
		testfiles.WriteHere(t, map[string]string{"a": text})
		_, err := runPrepare(t.Context(), "a", "--as", "text", "--out", "out")
		if valid := utf8.ValidString(text) && utf8.RuneCountInString(text) > 1; valid != (err == nil) {
			t.Fatalf("%q: error %v", text, err)
		} else if valid {
			checkPrepared(t, text)
		} else {
			wantOnlyFiles(t)
		}
	})
}
