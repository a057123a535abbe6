package prepare

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	parquetgo "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/vocabulary"
)

// A pairTokenizer merges lower-case letters in pairs from the beginning of a word, so cutting a
// word changes its tokens. Tokens below 256 are bytes. If special is set, a line feed is the
// end-of-text token.
type pairTokenizer struct {
	size    int64
	special bool
}

const pairsEOT = 256

func init() {
	tokenizers["pairs"] = func() (tokenizer, error) { return pairTokenizer{size: 1000}, nil }
	tokenizers["large"] = func() (tokenizer, error) { return pairTokenizer{size: 100_000}, nil }
	tokenizers["special"] = func() (tokenizer, error) { return pairTokenizer{1000, true}, nil }
}

func (pairTokenizer) Name() string              { return "pairs" }
func (p pairTokenizer) Size() int64             { return p.size }
func (pairTokenizer) EndOfText() (uint32, bool) { return pairsEOT, true }
func (p pairTokenizer) NewEncoder() encoder     { return p }

func (pairTokenizer) Cut(text []byte) int {
	return wordEnd(text, func(before, after byte) bool { return false })
}

func (p pairTokenizer) Bytes(token uint32) []byte {
	switch {
	case token < 256:
		return []byte{byte(token)}
	case token == pairsEOT:
		return []byte("<|endoftext|>")
	}
	token = (token - 257) % (26 * 26)
	return []byte{'a' + byte(token/26), 'a' + byte(token%26)}
}

func (p pairTokenizer) Append(tokens []uint32, text []byte) []uint32 {
	small := func(i int) bool { return i < len(text) && 'a' <= text[i] && text[i] <= 'z' }
	for i := 0; i < len(text); i++ {
		switch {
		case small(i) && small(i+1):
			tokens = append(tokens, 257+26*uint32(text[i]-'a')+uint32(text[i+1]-'a'))
			i++
		case p.special && text[i] == '\n':
			tokens = append(tokens, pairsEOT)
		default:
			tokens = append(tokens, uint32(text[i]))
		}
	}
	return tokens
}

func useSmallChunks(t testing.TB, size, line int) {
	oldSize, oldLine := chunkSize, maxLine
	t.Cleanup(func() { chunkSize, maxLine = oldSize, oldLine })
	chunkSize, maxLine = size, line
}

func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		for range 1 + rng.IntN(9) {
			b.WriteByte('a' + byte(rng.IntN(26)))
		}
		b.WriteString([]string{" ", " ", " ", ", ", ".\n", "\n\n", "  ", " 汉字 ", " \"é\" "}[rng.IntN(9)])
	}
	return b.String()
}

func someDocuments(n, size int) []string {
	rng := rand.New(rand.NewPCG(1, 2))
	var documents []string
	for i := range n {
		documents = append(documents, fmt.Sprintf("%d ", i)+words(rng, rng.IntN(2*size)))
	}
	return documents
}

func lines(documents []string) string {
	var b strings.Builder
	for _, d := range documents {
		raw, _ := json.Marshal(map[string]any{"id": 1, "text": d, "meta": map[string]any{"body": d}, "Text": "another"})
		b.Write(append(raw, '\n'))
	}
	return b.String()
}

func gzipped(text string) string {
	var b bytes.Buffer
	for part := range slices.Chunk([]byte(text), len(text)/2+1) { // two gzip members
		w := gzip.NewWriter(&b)
		w.Write(part)
		w.Close()
	}
	return b.String()
}

func zstandard(text string) string {
	var b bytes.Buffer
	w, _ := zstd.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

// parquetOf returns a parquet file with a column text, and a column meta.body that may be null.
func parquetOf(t testing.TB, documents []string, options ...parquetgo.WriterOption) string {
	t.Helper()
	type row struct {
		ID   int64  `parquet:"id"`
		Text string `parquet:"text"`
		Meta struct {
			Body *string  `parquet:"body,optional"`
			Tags []string `parquet:"tags,list"`
		} `parquet:"meta"`
	}
	var b bytes.Buffer
	w := parquetgo.NewGenericWriter[row](&b, append(options, parquetgo.PageBufferSize(4096))...)
	for i, d := range documents {
		r := row{ID: int64(i), Text: d}
		if d != "" {
			r.Meta.Body = &d
		}
		if _, err := w.Write([]row{r}); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 { // end of a row group
			testfiles.NoError(t, w.Flush())
		}
	}
	testfiles.NoError(t, w.Close())
	return b.String()
}

func prepared(t testing.TB, args string) string {
	t.Helper()
	said, err := runPrepare(t.Context(), strings.Fields(args)...)
	if err != nil {
		t.Fatalf("prepare %s: %v", args, err)
	}
	return said
}

var runDigestLine = regexp.MustCompile(` "run": "[0-9a-f]*",\n`)

// filesOf returns the contents of the files in a directory, without the digests of runs. The
// directory need not exist.
func filesOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		raw, _ := os.ReadFile(filepath.Join(dir, e.Name())) // empty for a directory
		files[e.Name()] = runDigestLine.ReplaceAllString(string(raw), "")
	}
	return files
}

func wantSame(t testing.TB, got, want map[string]string) {
	t.Helper()
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Errorf("files %q, want %q", g, w)
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %d bytes that differ from the %d wanted", name, len(got[name]), len(want[name]))
		}
	}
}

// Documents get the same tokens whichever files they are in.
func TestPrepareInputs(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	t.Chdir(t.TempDir())
	documents := someDocuments(350, 200)
	documents[7] = words(rand.New(rand.NewPCG(3, 4)), 100<<10) // longer than a chunk
	all := lines(documents)
	files := map[string]string{
		"a.jsonl": all, "bom.ndjson": "\ufeff" + all, "blank.jsonl": "\n" + strings.ReplaceAll(strings.TrimSuffix(all, "\n"), "\n", "\r\n \n"),
		"a.jsonl.gz": gzipped(all), "a.jsonl.zst": zstandard(all), "misnamed.jsonl": zstandard(all),
		"a.parquet": parquetOf(t, documents), "z.parquet": parquetOf(t, documents, parquetgo.Compression(&parquetgo.Zstd)),
		"s.parquet": parquetOf(t, documents, parquetgo.Compression(&parquetgo.Snappy)), "l.parquet": parquetOf(t, documents, parquetgo.Compression(&parquetgo.Lz4Raw)),
		"a.parquet.gz": gzipped(parquetOf(t, documents)),
		"a.arrow":      arrowOfTexts(t, documents), "a.feather.zst": zstandard(arrowOfTexts(t, documents)),
	}
	for i, d := range documents {
		switch text := d; i % 4 {
		case 0:
			files[fmt.Sprintf("d/%03d", i)] = text
		case 1:
			files[fmt.Sprintf("d/%03d.txt", i)] = "\ufeff" + text
		case 2:
			files[fmt.Sprintf("d/%03d.gz", i)] = gzipped(text)
		case 3:
			files[fmt.Sprintf("d/%03d.md.zst", i)] = zstandard(text)
		}
		half := "first.jsonl"
		if i >= 150 {
			half = "second.jsonl"
		}
		files[half] += lines([]string{d})
	}
	testfiles.Write(t, files)
	prepared(t, "a.jsonl --by pairs --out want")
	want := filesOf(t, "want")

	m, err := vocabulary.Read("want/vocab.json", nil)
	testfiles.NoError(t, err)
	got := map[string]bool{}
	for _, name := range splits {
		text := decoded(m, readTokens(t, "want/"+name+".bin"))
		for d := range strings.SplitSeq(strings.TrimSuffix(text, "<|endoftext|>"), "<|endoftext|>") {
			got[d] = true
		}
		if n := m.Splits[name].Documents; name == "val" && (n < 15 || n > 60) {
			t.Errorf("val has %d of 350 documents", n)
		}
	}
	if len(got) != len(documents) || slices.ContainsFunc(documents, func(d string) bool { return !got[d] }) {
		t.Errorf("%d documents come back, and should: %d", len(got), len(documents))
	}
	for _, args := range []string{
		"bom.ndjson", "blank.jsonl", "a.jsonl.gz", "a.jsonl.zst", "misnamed.jsonl", "first.jsonl second.jsonl", "a.jsonl --field meta.body",
		"a.parquet", "z.parquet", "s.parquet", "l.parquet", "a.parquet.gz", "a.parquet --field meta.body", "a.arrow", "a.feather.zst", "d",
	} {
		t.Run(args, func(t *testing.T) {
			prepared(t, args+" --by pairs --out out --force")
			wantSame(t, filesOf(t, "out"), want)
		})
	}
	for name, args := range map[string]string{"a.jsonl": "--as jsonl", "a.jsonl.zst": "--as jsonl", "a.parquet": "--as parquet", "a.parquet.gz": "--as parquet", "a.arrow": "--as arrow"} {
		t.Run("standard input of "+name, func(t *testing.T) {
			cmd := Command()
			cmd.SetIn(strings.NewReader(files[name]))
			cmd.SetOut(io.Discard)
			cmd.SetArgs(strings.Fields("- --by pairs --out piped --force " + args))
			testfiles.NoError(t, cmd.Execute())
			wantSame(t, filesOf(t, "piped"), want)
		})
	}
}

// A text cut into chunks gets the same tokens as the whole text, and val is its end.
func TestPrepareLongText(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	t.Chdir(t.TempDir())
	rng := rand.New(rand.NewPCG(5, 6))
	chinese := strings.Repeat(strings.Repeat("汉", 1000)+"。\n", 50)
	for name, text := range map[string]string{
		"words": words(rng, 200<<10), "chinese": chinese, "one word": strings.Repeat("x", 100<<10), "blank": words(rng, 10<<10) + strings.Repeat(" \n", 10<<10) + "end",
	} {
		t.Run(name, func(t *testing.T) {
			testfiles.Write(t, map[string]string{"a": text})
			prepared(t, "a --by pairs --val 0.1 --force --out out")
			runes := []rune(text)
			cut := int(float64(len(runes)) * 0.9)
			for i, part := range []string{string(runes[:cut]), string(runes[cut:])} {
				var want []uint16
				for _, token := range append(pairTokenizer{}.Append(nil, []byte(part)), pairsEOT) {
					want = append(want, uint16(token))
				}
				if got := readTokens(t, "out/"+splits[i]+".bin"); !slices.Equal(got, want) {
					t.Errorf("%s: %d tokens that differ from the %d wanted", splits[i], len(got), len(want))
				}
			}
		})
	}
}

// Whatever exceeds the memory limit is named in an error, however well it is compressed.
func TestPrepareTooLong(t *testing.T) {
	useSmallChunks(t, 1<<10, 64<<10)
	long := strings.Repeat("x", maxLine+1)
	testfiles.WriteHere(t, map[string]string{
		"a.jsonl.zst": zstandard("{\"text\": \"ok\"}\n{\"text\": \"" + long), "word.gz": gzipped(long), "a.parquet": parquetOf(t, []string{"ok", long}),
	})
	for args, want := range map[string]string{
		"a.jsonl.zst": "a.jsonl.zst: line 2 has more than 65536 bytes, which is the limit: shorten it",
		"word.gz":     "word.gz: no word ends in the 65536 bytes from byte 0 on",
		"a.parquet":   "a.parquet: row 2 has more than 65536 bytes",
	} {
		wantError(t, args+" --by pairs --val 0 --out out", want)
	}
	prepared(t, "word.gz --by byte --val 0 --out out")
	const want = "left out because they cannot be used: 1 row: too long (1, the first is row 2 of a.parquet)"
	if said := prepared(t, "a.parquet --by pairs --val 0 --out rows --invalid skip"); !strings.Contains(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}

// A line or a word may have exactly as many bytes as the limit.
func TestPrepareLongest(t *testing.T) {
	useSmallChunks(t, 1<<10, 64<<10)
	line := `{"text": "` + strings.Repeat("x", maxLine-len(`{"text": ""}`)) + `"}`
	for name, text := range map[string]string{"line.jsonl": line, "lines.jsonl": line + "\n" + line + "\n", "word.txt": strings.Repeat("x", maxLine)} {
		testfiles.WriteHere(t, map[string]string{name: text})
		prepared(t, name+" --by pairs --val 0 --out out")
	}
}

// A word that does not fit into memory is named, because otherwise the kernel kills the process.
func TestPrepareLittleMemory(t *testing.T) {
	old := memoryLimit
	t.Cleanup(func() { memoryLimit = old })
	memoryLimit = func() int64 { return 800 << 20 }
	word := strings.Repeat("word", 5<<20)
	small, large := []string{"ok", word[:5<<19]}, []string{"ok", word}
	testfiles.WriteHere(t, map[string]string{
		"small.jsonl": lines(small), "a.jsonl": lines(large), "a.txt": word, "a.parquet": parquetOf(t, large), "mask.arrow": arrowOfTexts(t, large),
	})
	prepared(t, "small.jsonl --by gpt2 --val 0 --out out")
	const fault = "has a word of 21.0 MB, and encoding it takes about 838.9 MB of memory in addition to "
	for args, want := range map[string]string{
		"a.jsonl": "a.jsonl: line 2: " + fault, "a.txt": "a.txt: the text from byte 0 on " + fault, "a.parquet": "a.parquet: row 2: " + fault,
		"mask.arrow --mask text:1": "mask.arrow: row 2: " + fault,
	} {
		wantError(t, args+" --by gpt2 --val 0 --force --out out", want)
	}
	prepared(t, "a.jsonl --by byte --val 0 --force --out out")
}

// A page is rejected if it has too many values or is larger than its header states.
func TestPreparePages(t *testing.T) {
	useSmallChunks(t, 1<<10, 64<<10)
	t.Cleanup(func() { maxPageValues = 32 << 20 })
	t.Chdir(t.TempDir())
	var tokens map[string]string // which are the same for all codecs
	for name, codec := range map[string]compress.Codec{
		"none": &parquetgo.Uncompressed, "gzip": &parquetgo.Gzip, "zstd": &parquetgo.Zstd, "brotli": &parquetgo.Brotli, "snappy": &parquetgo.Snappy, "lz4": &parquetgo.Lz4Raw,
	} {
		for _, version := range []int{1, 2} {
			maxPageValues = 32 << 20
			file := parquetOf(t, someDocuments(100, 200), parquetgo.Compression(codec), parquetgo.DataPageVersion(version))
			testfiles.Write(t, map[string]string{"a.parquet": file})
			t.Logf("%s, version %d", name, version)
			const args = "a.parquet --by byte --val 0 --out out --force --field meta.body"
			prepared(t, args)
			got := filesOf(t, "out")
			delete(got, "vocab.json")
			if tokens == nil {
				tokens = got
			}
			wantSame(t, got, tokens)
			f, err := parquetgo.OpenFile(strings.NewReader(file), int64(len(file)))
			testfiles.NoError(t, err)
			column, _ := f.Schema().Lookup("meta", "body")
			at := int(f.Metadata().RowGroups[0].Columns[column.ColumnIndex].MetaData.DataPageOffset)
			if name != "none" { // parquet-go ignores the size of these
				// A page header begins with the type, uncompressed size and compressed size, each
				// preceded by a byte.
				_, n := binary.Uvarint([]byte(file[at+3:]))
				lie := file[:at+3] + strings.Repeat("\x80", n-1) + "\x00" + file[at+3+n:]
				testfiles.Write(t, map[string]string{"a.parquet": lie})
				wantError(t, args, "a.parquet: column meta.body has a page that is larger than the 0 bytes that its header states")
				testfiles.Write(t, map[string]string{"a.parquet": file})
			}
			maxPageValues = 10
			wantError(t, args, "a.parquet: column meta.body has a page of ")
		}
	}
}

// pyarrow writes pages of at least 1,024 rows, however long these are.
func TestPrepareLargePage(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a gigabyte of memory")
	}
	t.Chdir(t.TempDir())
	type row struct {
		Text string `parquet:"text,plain"`
	}
	f, err := os.Create("a.parquet")
	testfiles.NoError(t, err)
	w := parquetgo.NewGenericWriter[row](f, parquetgo.PageBufferSize(1<<30), parquetgo.Compression(&parquetgo.Zstd))
	_, err = w.Write(slices.Repeat([]row{{strings.Repeat("a", 1<<20)}}, 300))
	testfiles.NoError(t, cmp.Or(err, w.Close(), f.Close()))
	prepared(t, "a.parquet --by byte --dry-run")
}

func TestPrepareInvalid(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	bad := strings.Repeat("é", 1<<14) + "\xff\xe6b"
	testfiles.WriteHere(t, map[string]string{"a": bad, "a.jsonl": "{}\n{\"text\": \"\xff\"}\n", "b.jsonl": "{\"text\": \"\xff\xffb\"}\n", "c.jsonl": "{\"n\": -Infinity, \"text\": \"\xff\"}\n", "a.parquet": parquetOf(t, []string{"a", "b\xff"})})
	for args, want := range map[string]string{
		"a":         "a: not valid UTF-8 at byte 32768: convert it to UTF-8, or use --invalid replace",
		"b.jsonl":   "b.jsonl: line 1: not valid UTF-8 at byte 10: convert it",
		"c.jsonl":   "c.jsonl: line 1: not valid UTF-8 at byte 26: convert it",
		"a.parquet": "a.parquet: row 2: not valid UTF-8 at byte 1: ",
	} {
		wantError(t, args+" --by pairs --val 0 --out out", want)
	}
	for args, want := range map[string]string{"a": "\ufffd\ufffdb", "b.jsonl": "\ufffd\ufffdb", "a.parquet": "ab\ufffd"} {
		prepared(t, args+" --invalid replace --val 0 --force --out out")
		got := decoded(readManifest(t), readTokens(t, "out/train.bin"))
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s ends in %q, want %q", args, got[max(0, len(got)-20):], want)
		}
	}
}

// --invalid replace writes as many U+FFFD as Unicode recommends, in a text, a line and a row, and
// counts the documents, however small the chunks are.
func TestPrepareReplaces(t *testing.T) {
	// The examples are those of the Unicode Standard, section 3.9, and a few of their kind.
	examples := map[string]string{
		"a\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd":        "a???b?c??d",
		"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82A":               "????????A",
		"\xed\xa0\x80\xed\xbf\xbf\xed\xafA":               "????????A",
		"\xf4\x91\x92\x93\xffA\x80\xbfB":                  "?????A??B",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA":               "????A",
		"x\xf0\x9f\xa6":                                   "x?",
		"\xf0\x9f\xa6\xf0\x9f\xa6\x80\xe2\x82":            "?\U0001f980?",
		"é\xe2\x82 \xe2\x82\xac\n\xc3\xc3\xa9 \ufffd\xef": "é? €\n?é \ufffd?",
	}
	testfiles.WriteHere(t, nil)
	for raw, want := range examples {
		want = strings.ReplaceAll(want, "?", "\ufffd")
		if got := string(replaceInvalid([]byte(raw))); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
	rng, keys := rand.New(rand.NewPCG(1, 2)), slices.Sorted(maps.Keys(examples))
	for _, size := range []int{3, 10, 64 << 10} {
		useSmallChunks(t, size, 1<<20)
		var raw, want string
		for range 200 {
			key := keys[rng.IntN(len(keys))]
			raw += key + "w w\n"
			want += strings.ReplaceAll(examples[key], "?", "\ufffd") + "w w\n"
		}
		line := strings.ReplaceAll(raw, "\n", "\\n")
		testfiles.Write(t, map[string]string{"a": raw, "b.jsonl": `{"text": "valid"}` + "\n" + `{"text": "` + line + `"}` + "\n", "c.parquet": parquetOf(t, []string{raw, "valid"})})
		for args, test := range map[string]struct{ text, first string }{
			"a":         {want, "a"},
			"b.jsonl":   {"valid" + want, "line 2 of b.jsonl"},
			"c.parquet": {want + "valid", "row 1 of c.parquet"},
		} {
			for _, by := range []string{"pairs", "char"} {
				said := prepared(t, args+" --by "+by+" --eot none --invalid replace --val 0 --force --out out")
				if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != test.text {
					t.Errorf("%s, chunks of %d bytes: %d U+FFFD, want %d", args, size, strings.Count(got, "\ufffd"), strings.Count(test.text, "\ufffd"))
				}
				if want := "not valid UTF-8: 1 document, in which U+FFFD replaced each invalid part; the first is " + test.first; !strings.Contains(said, want) {
					t.Errorf("it said %s, want %s", said, want)
				}
			}
		}
		// val is the end of a single text, and does not begin within an invalid part.
		prepared(t, "a --by char --invalid replace --val 0.3 --force --out out")
		m := readManifest(t)
		if got := decoded(m, readTokens(t, "out/train.bin")) + decoded(m, readTokens(t, "out/val.bin")); got != want {
			t.Errorf("train and val: %d U+FFFD, want %d", strings.Count(got, "\ufffd"), strings.Count(want, "\ufffd"))
		}
	}
}

// Inputs are read in the order of the arguments, and those of a glob or directory in the order of
// their paths. None may be given twice.
func TestPrepareGlobs(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{
		"a.md": "1", "s/b.md": "2", "s/t/c.md": "3", "s/t/d.go": "4", "s/t/u/e.go": "5", ".hidden/f.md": "6", "s/.g.md": "7", "s/t.md": "8",
		"s/.git/config": "9", "star*": "S", "start": "no", "2.txt": "b", "1.txt": "a", ".0.txt": "c",
	})
	testfiles.NoError(t, cmp.Or(os.Symlink("s", "link"), unix.Mkfifo("s/pipe.md", 0o600)))
	for args, want := range map[string]string{
		"s":                              "28345", // sorted by path: t.md is before t/c.md
		"./s/":                           "28345",
		"link":                           "28345",
		"2.txt 1.txt":                    "ba",
		"*.txt":                          "ab",
		".*.txt 1.txt":                   "ca",
		"star* 1.txt":                    "Sa",
		"*.txt s 2*":                     "is given twice",
		"s/b.md s 1.txt":                 "is given twice",
		"1.txt ./1.txt":                  "is given twice",
		"s/**/*.md":                      "283",
		"s/**/*.go":                      "45",
		"s/**/t/*.go":                    "4",
		"s/*/*.md":                       "3",
		"s/**":                           "28345",
		"s*/**/u/*":                      "5",
		"s --include *.md":               "283",
		"s --include *.go --include b.*": "245",
		"s --include t/*":                "34",
		"s a.md --include t/**/e.*":      "51",
		"**/.g.md":                       "7",
		"s/**/*.py":                      "matches no file",
	} {
		said, err := runPrepare(t.Context(), strings.Fields(args+" --by byte --val 0 --out out --force --eot none --as text")...)
		if strings.Contains(want, " ") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v %s, want an error that says: %s", args, err, said, want)
			}
		} else if err != nil {
			t.Errorf("%s: %v", args, err)
		} else if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// prepare announces large windows, and reads such files with --invalid skip, too, which reads texts
// twice.
func TestPrepareLargeWindow(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	text := strings.Repeat("many words ", 1<<12)
	testfiles.WriteHere(t, map[string]string{"a.txt.zst": testfiles.ZstdFrame(21<<3, text), "b.jsonl.zst": zstandard("{\"text\": \"last\"}\n"), "c": text + "\xff"})
	for _, invalid := range []string{"error", "skip"} {
		said := prepared(t, "a.txt.zst b.jsonl.zst --by byte --val 0 --force --out out --invalid "+invalid)
		const want = "decompressing takes up to 2.1 GB of memory, because zstd --long compressed 1 file; the one with the largest window is a.txt.zst\n"
		if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != text+"last" || !strings.Contains(said, want) {
			t.Errorf("--invalid %s: %d bytes of text, want %d; said %q", invalid, len(got), len(text)+4, said)
		}
	}
}

// --invalid skip leaves out no compressed file, because it may hold text.
func TestPrepareKeepsCompressedFiles(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"a.gz":        {"\x00\x01\xff\x02", "is neither gzip nor zstd, and not text"},
		"a.jsonl.zst": {"\x25\xb5\x2f\xfd\x00", "is neither gzip nor zstd, and not text"},
		"a.bz2":       {"", "is a bzip2 file, not text (--as text encodes it as it is): decompress it"},
		"a":           {"BZh51AY&SY\x00\x01\xff", "is a bzip2 file"},
		"a.txt":       {"\xfd7zXZ\x00\x00", "is an xz file"},
		"a.lz4":       {"", "is an LZ4 file"},
		"lz4":         {"\x04\x22\x4d\x18\x00", "is an LZ4 file"},
		"a.br":        {"", "is a compressed file"},
		"cut.gz":      {gzipped("some text")[:20], "is truncated: its compressed data has no end"},
		"cut.zst":     {zstandard("some text")[:12], "is truncated: its compressed data has no end"},
		"more.gz":     {gzipped("some text") + "\x00more", "has bytes after the end of the compressed data"},
		"more.zst":    {zstandard("some text") + "more", "has bytes after the end of the compressed data"},
	} {
		testfiles.WriteHere(t, map[string]string{name: test.content})
		for _, invalid := range []string{"error", "skip"} {
			wantError(t, name+" --by pairs --val 0 --force --out out --invalid "+invalid, name+": "+test.want)
		}
	}
	testfiles.WriteHere(t, map[string]string{"BZh.txt": "BZh9 is no bzip2 file", "plain.gz": "plain text"})
	prepared(t, "BZh.txt plain.gz --by pairs --val 0 --force --out out --invalid skip")
}
