package prepare

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/testwait"
)

// Each text in a list is taken once, in the order of the list. Exactly the texts that meet the
// conditions of --mask get the mask.
func TestPrepareLists(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": `{"s": "S", "m": [{"role": "user", "text": "U"}, ` +
		`{"role": "assistant", "text": "AA", "weight": 1, "parts": [{"t": "x"}, {"t": "y"}]}, {"role": "assistant", "text": null, "weight": 0, "parts": []}, ` +
		`{"role": "tool", "text": "T"}, {"role": "assistant", "text": "B", "weight": 0}], "l": ["p", "q"], "none": null, ` +
		`"n": [{"by": "gpt-3.5", "x": {"t": "G"}}, {"by": "a,b", "x": {"t": "C"}}], "k[b=c.d]e": {"t": "K"}}`})
	for args, want := range map[string]struct{ text, mask string }{
		"--field m.*.text":                                    {"UAATB", ""},
		"--field m[role=assistant].text":                      {"AAB", ""},
		"--field m[weight=1].parts.*.t":                       {"xy", ""},
		"--field l.*":                                         {"pq", ""},
		"--field n[by=gpt-3.5].x.t":                           {"G", ""},
		"--mask n[by=gpt-3.5].x.t:0,n[by=a,b].x.t:1":          {"GC", "01"},
		"--field k[b=c.d]e.t":                                 {"K", ""},
		"--mask m[role=assistant].text:1":                     {"UAATB", "01101"},
		"--mask m.*.text:1":                                   {"UAATB", "11111"},
		"--mask s:1,m[weight=1].text:1,none.*:0":              {"SUAATB", "101100"},
		"--mask m[role=user].text:0,m.*.text:1,s:0":           {"UAATBS", "011110"},
		"--mask m[role=tool].role:1,m[role=assistant].text:1": {"userUassistantAAassistanttoolTassistantB", "0000" + "0" + "000000000" + "11" + "000000000" + "1111" + "0" + "000000000" + "1"},
	} {
		said := prepared(t, "a.jsonl --by byte --val 0 --out out --force "+args)
		mask := strings.NewReplacer("\x00", "0", "\x01", "1").Replace(filesOf(t, "out")["train.mask.bin"])
		if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != want.text || mask != want.mask {
			t.Errorf("%s: %q with mask %s, want %q with %s", args, got, mask, want.text, want.mask)
		}
		if line := fmt.Sprintf("tokens, %d with mask 1\n", strings.Count(mask, "1")); strings.Contains(said, line) != (mask != "") {
			t.Errorf("%s: said %q, want %q", args, said, line)
		}
	}
	for args, want := range map[string]string{
		"--field m.text":               "line 1: m is a list: to take a text of each element, write m.*.text",
		"--field s.*":                  `line 1: field s.* is not a list but a text`,
		"--field m.*.other":            `line 1: has no field m.*.other: choose one with --field or --mask; there are [`,
		"--field m[0].text":            `"]; for the elements of a list, write m.* or, for some of them, m[role=user]`,
		"--field m[role=user].none":    `there are ["role" "text"]; to leave`,
		"--field l[role=a].b":          "line 1: field l[role=a] is not a list of JSON objects",
		"--mask m[role=a].text":        "--mask: must list fields with 0 or 1",
		"--field m[role=a][x=b].text":  "--field: a list can have only one condition",
		"--mask m[role=a][x=b].text:1": "--mask: a list can have only one condition",
		"--id m[role=a][x=b].text":     "--id: ",
		"--special":                    "--special, --eot-token: byte has no special tokens",
	} {
		wantError(t, "a.jsonl --by byte --val 0 --out out --force "+args, want)
	}
	testfiles.Write(t, map[string]string{"a.parquet": parquetOf(t, []string{"a", "b"})})
	for args, want := range map[string]string{
		"--field texts":           "a.parquet: has no column texts, only id, text, meta.body, meta.tags.*: choose one with --field or --mask",
		"--field meta.tags.body":  "a.parquet: has no column meta.tags.body, only",
		"--mask text:0,missing:1": "a.parquet: has no column missing, only",
		"--field id":              "a.parquet: column id does not have one text for each row",
		"--field meta":            "a.parquet: column meta does not have one text for each row",
		"--field meta.tags":       "a.parquet: column meta.tags does not have one text for each row",
		"--mask id:1":             "a.parquet: row 1: field id is not a text but a number; to leave such rows out, use --invalid skip",
		"--field text.*":          "a.parquet: row 1: field text.* is not a list but a text",
	} {
		wantError(t, "a.parquet --by byte --val 0 --out out --force "+args, want)
	}
}

// A text has no fields, so --mask refuses it, wherever it is among the inputs.
func TestPrepareMaskOfText(t *testing.T) {
	line := "{\"p\": \"Q\", \"c\": \"XY\"}\n"
	testfiles.WriteHere(t, map[string]string{"a.txt": "abc", "b.jsonl": line, "c": line, "d/a.jsonl": line, "d/b.md": "abc", "z.gz": gzipped("abc"), "p.parquet": parquetOf(t, []string{"A"}), "i.png": "\x89PNG"})
	for args, text := range map[string]string{
		"a.txt --mask p:0,c:1": "a.txt", "a.txt --mask c:1,p:0": "a.txt", "a.txt b.jsonl --mask p:0,c:1": "a.txt", "b.jsonl a.txt --mask p:0,c:1": "a.txt",
		"d --mask p:0,c:1": "d/b.md", "b.jsonl c --mask p:0,c:1": "c", "z.gz b.jsonl --mask p:0": "z.gz", "- --mask p:0,c:1": "-",
		"b.jsonl --as text --mask p:0,c:1": "b.jsonl", "p.parquet a.txt --mask text:1": "a.txt", "i.png --as text --mask p:1 --invalid skip": "i.png",
	} {
		wantError(t, args+" --by byte --out out", text+": is read as text, which has no fields for --mask: leave it out")
	}
	for args, want := range map[string]string{
		"d --include **/*.jsonl --mask p:0,c:1": "\x00\x01\x01", "c --as jsonl --mask p:0,c:1": "\x00\x01\x01", "p.parquet --mask text:1": "\x01",
		"b.jsonl i.png --invalid skip --by pairs --eot none --mask p:0,c:1": "\x00\x01\x01",
	} {
		prepared(t, "--by byte --val 0 --out out --force "+args)
		if got := filesOf(t, "out")["train.mask.bin"]; got != want {
			t.Errorf("%s: mask %x, want %x", args, got, want)
		}
	}
}

// With --special, the names of special tokens in a text become these tokens. prepare prints which
// token separates documents, and warns if there is none.
func TestPrepareSpecial(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": "{\"text\": \"a<|endoftext|>b<|endofprompt|>\"}\n"})
	for args, want := range map[string]struct {
		special, inside int
		said            string
	}{
		"--by cl100k":                                       {0, 0, "tokens of cl100k: <|endoftext|> (100257) ends each document\n"},
		"--by cl100k --special --eot begin":                 {2, 1, "tokens of cl100k: <|endoftext|> (100257) begins each document\n"},
		"--by cl100k --special --eot-token <|endofprompt|>": {2, 1, "tokens of cl100k: <|endofprompt|> (100276) ends each document\n"},
		"--by byte --eot none":                              {0, 0, "tokens of byte: no token separates documents\nout/train.bin"},
		"--by byte":                                         {0, 0, "tokens of byte: no token separates documents\nwarning: byte has no known end-of-text token, so"},
	} {
		said := prepared(t, "a.jsonl --val 0 --out out --force "+args)
		special := 0
		if m := readManifest(t); m.TokenDType == "uint32" {
			raw := []byte(filesOf(t, "out")["train.bin"])
			for ; len(raw) > 0; raw = raw[4:] {
				if binary.LittleEndian.Uint32(raw) >= 100257 {
					special++
				}
			}
			if m.EOT != nil {
				special--
			}
		}
		if special != want.special || !strings.HasPrefix(said, want.said) {
			t.Errorf("%s: %d special tokens, want %d; said %q, want %q", args, special, want.special, said, want.said)
		}
		const inside = "\ntrain: the end-of-text token occurs 1 time inside documents, so only the index says where they end\n"
		if n := int(readManifest(t).Splits["train"].EOTInside); n != want.inside || strings.Contains(said, inside) != (n == 1) {
			t.Errorf("%s: %d end-of-text tokens inside documents, want %d; said %q", args, n, want.inside, said)
		}
		// A reader may split documents at this token only if each document has exactly one.
		if at := readManifest(t).EOTAt; (at == "none") != (want.inside > 0 || strings.Contains(args, "byte")) {
			t.Errorf("%s: end-of-text tokens are at %q", args, at)
		}
	}
	wantError(t, "a.jsonl --by cl100k --eot-token <|eot|> --out out --force", `--eot-token: cl100k has no special token "<|eot|>": choose one of ["<|endoftext|>"`)
}

// --invalid skip leaves out and counts each file, line or row that is not UTF-8, even if it is
// longer than a chunk.
func TestPrepareLeavesOut(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	testfiles.WriteHere(t, map[string]string{
		"d/0": "first", "d/1": strings.Repeat("é", 1<<14) + "\xff", "d/2": "\xffx", "d/3.gz": gzipped(strings.Repeat("x ", 1<<14) + "\xe6"), "d/4": "last", "d/7": "\x00\x01", "d/8.png": "\x89PNG",
		"d/5.jsonl": "{\"text\": \"\xff\"}\n{\"text\": \"ok\"}\n", "d/6.parquet": parquetOf(t, []string{"a", "b\xff"}), "d/9.jsonl": "\xff\xfe{\x00}\x00",
	})
	said := prepared(t, "d --by pairs --val 0 --invalid skip --out out")
	text := decoded(readManifest(t), readTokens(t, "out/train.bin"))
	if want := "first<|endoftext|>last<|endoftext|>ok<|endoftext|>a<|endoftext|>"; text != want || !strings.Contains(said, "left out because they are not text in UTF-8: 8 documents; the first is d/1\n") {
		t.Errorf("tokens say %q, want %q; said %q", text, want, said)
	}
	if m := readManifest(t); *m.LeftOut != (vocabulary.LeftOut{Documents: 8, First: "d/1"}) {
		t.Errorf("vocab.json has left out %+v", m.LeftOut)
	}
	wantError(t, "- --by pairs --val 0 --invalid skip --out out2", "-: is not a regular file, and --invalid skip reads a text twice")
}

// If documents need fields, --invalid skip leaves out each file with the name of a binary one, even
// if it has text, which would become a document.
func TestPrepareLeavesOutTextsWithoutFields(t *testing.T) {
	const line = `{"text": "a", "id": 1, "input_ids": [5, 6]}` + "\n"
	testfiles.WriteHere(t, map[string]string{"d/a.jsonl": line, "d/b.doc": "some text", "d/c.bin": "", "only/a.jsonl": line})
	for _, args := range []string{"--by pairs --mask text:1", "--by pairs --id id", "--by pairs --ids input_ids", "--ids input_ids --vocab-size 10", "--by char --id id"} {
		args += " --val 0 --invalid skip --force --out "
		prepared(t, "only "+args+"want")
		said := prepared(t, "d "+args+"out")
		if want := "left out because they are not text in UTF-8: 2 documents; the first is d/b.doc\n"; !strings.Contains(said, want) {
			t.Errorf("%s: said %q, want %q", args, said, want)
		}
		got, want := filesOf(t, "out"), filesOf(t, "want")
		delete(got, "vocab.json")
		delete(want, "vocab.json")
		wantSame(t, got, want)
	}
}

// A file that is not text is refused by its name or its content, unless --as says how to read it.
func TestPrepareRefuses(t *testing.T) {
	const list, object = "[\n {\"text\": \"a\"}]", "{\n \"data\": []\n}"
	for name, test := range map[string]struct{ content, want string }{
		"a.json":              {list, "is a JSON list, not text (--as text encodes it as it is): write one object per line: jq -c '.[]' FILE >FILE.jsonl"},
		"a.json.gz":           {gzipped(list), "is a JSON list"},
		"a.jsonl":             {list, "is a JSON list"},
		"list.txt":            {list, "is a JSON list"},
		"b.json":              {object, "is a JSON object on several lines, not text (--as text encodes it as it is): write it as one line: jq -c . FILE"},
		"lines":               {"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "is a file of JSON lines, not text (--as text encodes it as it is): use --as jsonl"},
		"a.jsonlines":         {"{\"text\": \"a\"}\n", "is a file of JSON lines"},
		"a.jl":                {"{\"text\": \"a\"}\n", "is a file of JSON lines"},
		"A.jsonl-00-of-02.gz": {gzipped("{\"text\": \"a\"}\n"), "is a file of JSON lines"},
		"a.json.1":            {list, "is a JSON list"},
		"a.CSV":               {"a,b\n", "is a CSV table, not text (--as text encodes it as it is): write its rows as JSON lines: python3 -c"},
		"a.tsv.zst":           {zstandard("a\tb\n"), "is a TSV table, not text (--as text encodes it as it is): "},
		"a.npy":               {"", "is a NumPy array, not text (--as text encodes it as it is): if it holds token ids, mount it"},
		"npy":                 {"\x93NUMPY", "is a NumPy array"},
		"a.npz":               {"PK\x03\x04", "is an archive of NumPy arrays"},
		"a.docx":              {"PK\x03\x04", "is a document, not text (--as text encodes it as it is): extract its text: pandoc"},
		"zip":                 {"PK\x03\x04", "is an archive, not text (--as text encodes it as it is): unpack it"},
		"pdf":                 {"%PDF-1.7\n", "is a PDF file, not text (--as text encodes it as it is): extract its text: pdftotext FILE"},
		"a.png":               {"", "is an image, not text (--as text encodes it as it is): name only text"},
		"png.txt":             {"\x89PNG\r\n\x1a\n\x00\x00\x00\r", "is binary data (image/png), not text"},
		"arrow":               {"ARROW1\x00\x00", "is an Arrow file, not text (--as text encodes it as it is): use --as arrow"},
		"stream":              {arrowOfTexts(t, []string{"a"}), "is an Arrow stream, not text (--as text encodes it as it is): use --as arrow"},
		"parquet":             {parquetOf(t, []string{"a"}), "is a Parquet file, not text (--as text encodes it as it is): use --as parquet"},
		"utf16":               {"\xff\xfea\x00b\x00", "is UTF-16, not text (--as text encodes it as it is): convert it: iconv"},
		"utf16.json":          {"\xff\xfe{\x00}\x00", "is UTF-16"},
		"numbers":             {strings.Repeat("many words ", 50) + strings.Repeat("\x00\x01", 5), "is binary data, not text (--as text encodes it as it is): name only text, such as"},
		"latin1":              {"caf\xe9 \xe0 la carte", ""},
		"footnotes":           {"[1] {\"a\": 1}\n\x1b[0m\x00" + strings.Repeat("words ", 50), ""},
		"page.html":           {"<html>", ""},
		"code.py":             {list, ""},
		"lines.json":          {"{\"text\": \"a\"}\n", ""},
	} {
		testfiles.WriteHere(t, map[string]string{"d/" + name: test.content, "other": "text"})
		if test.want == "" {
			prepared(t, "d other --by byte --val 0 --out out")
		} else {
			wantError(t, "d other --by byte --val 0 --out out", "d/"+name+": "+test.want)
			wantError(t, "d other --by byte --val 0 --out out", "name only text, such as with --include '*.txt'")
			prepared(t, "d other --by byte --val 0 --out out --as text")
		}
		content := strings.NewReplacer(gzipped(list), list, zstandard("a\tb\n"), "a\tb\n", "{\"text\": \"a\"}\n", "a").Replace(test.content)
		if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); test.want == "" && got != content+"text" {
			t.Errorf("%s: %q, want %q and text", name, got, content)
		}
	}
}

// The error for a file that was not downloaded, or not completely, says what to do.
func TestPrepareRefusesDownloads(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
	for _, name := range []string{"a.txt", "a", "a.jsonl", "a.json", "a.parquet", "a.arrow", "a.jsonl.gz", "a.md"} {
		testfiles.WriteHere(t, map[string]string{name: pointer})
		wantError(t, name+" --by pairs --val 0 --out out", name+": is a pointer of Git LFS, not the file itself")
		wantError(t, name+" --by pairs --val 0 --out out --invalid skip", "fetch that with git lfs pull")
		prepared(t, name+" --by byte --val 0 --out out --as text")
		if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != pointer {
			t.Errorf("%s as text: %q", name, got)
		}
	}
	whole := parquetOf(t, []string{"a", "b"})
	for _, content := range []string{"", "<!DOCTYPE html>", whole[:len(whole)-9], strings.Repeat("\x00", len(whole))} {
		testfiles.WriteHere(t, map[string]string{"a.parquet": content})
		wantError(t, "a.parquet --by byte --val 0 --out out", "a.parquet: cannot be read as Parquet: ")
		wantError(t, "a.parquet --by byte --val 0 --out out", ", copy or download it again")
	}
}

// Files of other formats whose names resemble those of JSON lines, such as a.jsonc, are texts.
func TestPrepareTextsThatResembleJSON(t *testing.T) {
	for _, name := range []string{"a.jsonc", "a.jsonld", "a.json5", "a.json.tmpl", "a.ipynb.txt"} {
		testfiles.WriteHere(t, map[string]string{name: "{\"a\": 1, // no JSON\n}"})
		prepared(t, name+" --by byte --val 0 --out out")
	}
	for _, name := range []string{"a.jsonc", "a.jsonld"} {
		testfiles.WriteHere(t, map[string]string{name: "[{\"a\": 1}]"})
		prepared(t, name+" --by byte --val 0 --out out")
	}
	for _, name := range []string{"a.jsonl-00000-of-00010", "a.jsonlines", "a.JSON.1"} {
		testfiles.WriteHere(t, map[string]string{name: "{\"text\": \"a\"}\n"})
		wantError(t, name+" --by byte --val 0 --out out", name+": is a file of JSON lines")
	}
}

// The output of an earlier run is left out, but not a file that an argument names.
func TestPrepareOnlyOutput(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(20, 30))})
	prepared(t, "a.jsonl --by byte --out out")
	for _, more := range []string{" --dry-run", " --val-files x*", " --force"} {
		wantError(t, "out --by byte --out out"+more, "out: has no texts, but only the output of an earlier run")
	}
	for _, named := range []string{"out/vocab.json", "./out/vocab.json", "out/../out/vocab.json"} {
		wantError(t, named+" a.jsonl --by byte --as text --force --out out", "out/vocab.json: is both a text and an output file")
	}
}

// prepare tells if val is larger than train.
func TestPrepareLargeVal(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a": strings.Repeat("words ", 100)})
	const want = "val has more tokens than train, 420 and 180; to choose how many, use --val or --val-files\n"
	if said := prepared(t, "a --by byte --val 0.7 --out out"); !strings.Contains(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	if said := prepared(t, "a --by byte --val 0.5 --out half"); strings.Contains(said, "val has more") {
		t.Errorf("with as many tokens in both, said %q", said)
	}
}

// prepare counts what a user may not expect, and stops if --mask asks for mask 1 in vain.
func TestPrepareNotes(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{
		"special": "<|<|endoftext|> <|endoftext|<|endoftext|><", "null.jsonl": `{"p": "Q", "c": null}`, "empty": "", "bom": "\ufeff",
		"a.jsonl": "{\"text\": \"a\"}\n\n{\"text\": \"\"}\n{\"text\": null}\n",
		"chat.jsonl": `{"m": [{"role": "user", "text": "U", "name": "N", "calls": []}, {"role": "assistant", "text": "A", "calls": [1]}, ` +
			`{"role": "tool", "text": "T", "calls": null, "name": ""}, {"text": "X", "calls": {"f": 1}}, {"role": "user", "text": "V"}], "id": 1}`,
	})
	const dropped = "dropped: 3 fields of messages, calls (2), name (1); to keep them, render each chat"
	for args, want := range map[string]string{
		"special --by gpt2":                                          "encoded as ordinary text: 2 names of special tokens, <|endoftext|> (2); to encode them as these tokens, use --special\n",
		"special --by gpt2 --special":                                "",
		"special --by byte":                                          "",
		"bom a.jsonl empty --by byte":                                "left out because they have no text: 4 documents; the first is bom; if they should",
		"a.jsonl --by byte":                                          "left out because they have no text: 2 documents; the first is line 3 of a.jsonl;",
		"null.jsonl --by byte --field x --mask p:1":                  "warning: --field x has no effect, because --mask names all fields with texts\n",
		"chat.jsonl --by byte --field m[role=user].text":             "dropped: 1 field of messages, name (1);",
		"chat.jsonl --by byte --mask m.*.text:1":                     "dropped: 7 fields of messages, role (4), calls (2), name (1);",
		"chat.jsonl --by byte --mask m.*.text:1,m[role=x].text:0":    "matches 0 texts: part m[role=x].text:0 of --mask; correct it, or remove it\n" + dropped,
		"chat.jsonl --by byte --mask m.*.text:1,m[role=x]:0":         "error chat.jsonl: line 1: field m[role=x] is not a text",
		"chat.jsonl --by byte --mask m[role=x].text:0":               "matches 0 texts: part m[role=x].text:0 of --mask;",
		"chat.jsonl --by byte --mask m[role=assistant].text:1":       "given mask 0 because no part of --mask names them: 4 messages, role=user (2), role= (1), role=tool (1); to choose their mask, add them to --mask\n" + dropped,
		"chat.jsonl --by byte --mask m[role=x].text:1":               "error --mask: part m[role=x].text:1 matches 0 texts: correct it, or remove it; messages that no part names: role=user (2), ",
		"chat.jsonl --by byte --mask m.*.text:0,m[role=user].text:1": "error --mask: part m[role=user].text:1 matches 0 texts",
		"null.jsonl --by byte --mask p:0,c:1":                        "error --mask: 0 tokens of train have mask 1, so there is nothing to learn: give mask 1 to a field that has text",
		"null.jsonl --by byte --mask p:0,c:0":                        "",
	} {
		said, err := runPrepare(t.Context(), strings.Fields(args+" --val 0 --out out --force")...)
		if err != nil {
			said = "error " + err.Error()
		}
		if !strings.Contains(said, want) || strings.HasPrefix(want, "error ") != (err != nil) || want == "" && strings.Count(said, "\n") > 5 {
			t.Errorf("%s: said %q, want %q", args, said, want)
		}
	}
}

// A run that continues prints how much is done. If a run is already complete, prepare says so,
// unless the texts or the options have changed.
func TestPrepareSaysWhatItDoes(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	documents := someDocuments(400, 300)
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(documents[:200]), "b.jsonl": lines(documents[200:]) + "no JSON\n"})
	const args = "a.jsonl b.jsonl --by pairs --shard-tokens 5000 --out out"
	wantError(t, args, "; run the same command again to continue")
	said, _ := runPrepare(t.Context(), strings.Fields(args)...)
	if percent := strings.Index(said, "\ncontinuing at 9"); percent < 0 || !strings.Contains(said[percent:], "% of ") {
		t.Errorf("a run that failed near the end says then: %q", said)
	}
	testfiles.Write(t, map[string]string{"b.jsonl": lines(documents[200:])})
	prepared(t, args+" --force")
	files := filesOf(t, "out")
	if said := prepared(t, args); !strings.Contains(said, "\nout is already complete: the same command made it from the same texts\nout/train_000001.bin to ") {
		t.Errorf("a finished run says %q", said)
	}
	wantSame(t, filesOf(t, "out"), files)
	old := time.Now().Add(-time.Hour) // a copy on another host may have another time
	testfiles.NoError(t, os.Chtimes("a.jsonl", old, old))
	prepared(t, args+" --force")
	wantSame(t, filesOf(t, "out"), files)
	wantError(t, args+" --eot begin", ": already exists: replace it with --force")
	testfiles.Write(t, map[string]string{"older.jsonl": strings.ToUpper(lines(documents[:200]))})
	testwait.Until(t, "a time after that of vocab.json", func() (any, bool) {
		testfiles.NoError(t, os.Chtimes("older.jsonl", old, old))
		older, errOlder := os.Stat("older.jsonl")
		written, err := os.Stat("out/vocab.json")
		testfiles.NoError(t, errors.Join(errOlder, err))
		return changeTime(older), changeTime(older).After(changeTime(written))
	})
	testfiles.NoError(t, os.Rename("older.jsonl", "a.jsonl")) // has the same size
	wantError(t, args, ": already exists: replace it with --force")
	testfiles.Write(t, map[string]string{"b.jsonl": lines(documents[200:399])})
	wantError(t, args, ": already exists: replace it with --force")
}

// A directory with the name of a tokenizer is not taken for a tokenizer.
func TestPrepareIntoADirectoryNamedLikeATokenizer(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(20, 100))})
	for _, by := range []string{"char", "byte", "gpt2"} {
		args := fmt.Sprintf("a.jsonl --by %s --out %[1]s", by)
		prepared(t, args)
		if said := prepared(t, args); !strings.Contains(said, by+" is already complete") {
			t.Errorf("%s: the second run says %q", by, said)
		}
	}
}

// No shard is without tokens, even if the tokens fill the last one exactly.
func TestNoShardIsEmpty(t *testing.T) {
	// 11 tokens
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines([]string{"ABC", "ABCD", "", "A"})})
	for _, format := range []string{"headerless", "llm.c", "megatron", "datatrove", "npy"} {
		for n := 1; n <= 12; n++ {
			prepared(t, fmt.Sprintf("a.jsonl --by pairs --val 0 --shard-tokens %d --force --out out --format %s", n, format))
			shards, all := readManifest(t).Splits["train"].Shards, int64(0)
			for i, shard := range shards {
				if all += shard.Tokens; shard.Tokens == 0 || shard.Name != fmt.Sprintf("train_%06d%s", i+1, outputFormats[format].extension) {
					t.Errorf("%s, %d tokens a shard: shard %s has %d", format, n, shard.Name, shard.Tokens)
				}
			}
			var files int
			for name := range filesOf(t, "out") {
				if strings.HasSuffix(name, outputFormats[format].extension) {
					files++
				}
			}
			if all != 11 || files != len(shards) {
				t.Errorf("%s, %d tokens a shard: %d tokens in %d shards, and %d files", format, n, all, len(shards), files)
			}
		}
	}
}

// A document that two shards share has an end in both.
func TestPrepareIndexOfShards(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines([]string{"A", "BBBBBBBBBB", "C"})})
	prepared(t, "a.jsonl --by pairs --val 0 --shard-tokens 4 --out out") // A| BBBB BBBB BB| C|
	for name, want := range map[string][]byte{"1": {2, 4}, "2": {4}, "3": {4}, "4": {1, 3}} {
		var ends []byte
		for i, b := range []byte(filesOf(t, "out")["train_00000"+name+".bin.index"]) {
			if i%8 == 0 {
				ends = append(ends, b)
			}
		}
		if !slices.Equal(ends, want) {
			t.Errorf("shard %s: documents end at %v, want %v", name, ends, want)
		}
	}
}

// Bash does not expand the ~ in --out=~/tokens.
func TestPrepareUnexpandedOutput(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.txt": "to be"})
	wantError(t, "a.txt --by byte --out=~/tokens", `--out: ~ and variables are not expanded here: write the path out (got "~/tokens")`)
	if _, err := os.Stat("~"); !os.IsNotExist(err) {
		t.Errorf("prepare made a directory ~ (error %v)", err)
	}
}

// As for the kernel, .. after a symbolic link is the directory above its target.
func TestFindBesideTheTargetOfALink(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"real/sub/a.txt": "A", "real/x.txt": "meant", "x.txt": "wrong", "real/sub/deep/b.txt": "B"})
	testfiles.NoError(t, os.Symlink("real/sub", "link"))
	for args, want := range map[string]string{
		"link/../x.txt": "meant", "./link/deep/../../x.txt": "meant", "link/../*.txt": "meant", "link/..": "ABmeant",
		"real/../x.txt": "wrong", "real/sub/../../x.txt": "wrong", "link/../sub/a.txt": "A",
	} {
		prepared(t, args+" --by byte --val 0 --out out --force")
		if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != want {
			t.Errorf("%s: read %q, want %q", args, got, want)
		}
	}
}
