package scan

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/internal/testfiles"
)

// writeRandomTokens writes files of random uint16 tokens from 1 to 99, and returns the
// tokens by file name.
func writeRandomTokens(t *testing.T, sizes map[string]int) map[string][]uint16 {
	t.Helper()
	t.Chdir(t.TempDir())
	rng, all := rand.New(rand.NewPCG(5, 6)), map[string][]uint16{}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		for range sizes[name] {
			all[name] = append(all[name], uint16(1+rng.IntN(99)))
		}
		saveTokens(t, name, all[name])
	}
	return all
}

func saveTokens(t *testing.T, name string, tokens []uint16) {
	t.Helper()
	raw := make([]byte, 0, 2*len(tokens))
	for _, v := range tokens {
		raw = binary.LittleEndian.AppendUint16(raw, v)
	}
	testfiles.Write(t, map[string]string{name: string(raw)})
}

// load returns an opener for a configuration with the given text.
func load(t *testing.T, text string) []*dataset.Opener {
	t.Helper()
	testfiles.Write(t, map[string]string{"config.toml": text})
	c, err := new(config.Flags).Load()
	testfiles.NoError(t, err)
	return []*dataset.Opener{dataset.NewOpener(c)}
}

const small = "[batch]\nblock_size = 16\nbatch_size = 2\ntoken_dtype = 'uint16'\nvocab_size = 100\n"

// checkAll checks all splits of a configuration with the given text, and returns the report.
func checkAll(t *testing.T, text string) *Report {
	t.Helper()
	c := load(t, text)
	report, err := Check(t.Context(), c, CheckOptions{}, io.Discard)
	testfiles.NoError(t, err)
	if report.OK != (len(report.Problems) == 0) {
		t.Errorf("ok is %v with %d problems", report.OK, len(report.Problems))
	}
	return report
}

// problemLines returns the problems of r, one a line, without their messages.
func problemLines(r *Report) string {
	text := ""
	for _, p := range r.Problems {
		text += fmt.Sprintf("%s %s %d %d %s %d\n", p.Kind, filepath.Base(string(p.File)), p.Index, p.Count, filepath.Base(string(p.Other)), p.OtherIndex)
	}
	return text
}

func TestCheckOfGoodFiles(t *testing.T) {
	writeRandomTokens(t, map[string]int{"a.bin": 5000, "b.bin": 3000, "val.bin": 1000})
	r := checkAll(t, small+"[splits.train]\ntokens = ['a.bin', 'b.bin']\n[splits.val]\ntokens = 'val.bin'\n")
	if !r.OK || r.Tokens != 9000 || r.Bytes != 18000 || r.Files != 3 || !r.VocabularyKnown {
		t.Errorf("%+v", r)
	}
}

// Files without tokens and without rows are no problems, and Print counts the latter.
func TestCheckOfShortFiles(t *testing.T) {
	writeRandomTokens(t, map[string]int{"a.bin": 5000, "b.bin": 0, "c.bin": 16, "d.bin": 3})
	r := checkAll(t, small+"[splits.train]\ntokens = '*.bin'\n")
	var out strings.Builder
	r.Print(&out)
	if !r.OK || r.Files != 3 || r.Tokens != 5019 || r.Short["train"] != 2 || !strings.Contains(out.String(), "\ntrain: 2 files are too short for a row of block_size+1 tokens\n") {
		t.Errorf("%+v: %s", r, &out)
	}
}

// Print says how much of each split is in others, and then shows each finding and the text of its
// tokens.
func TestCheckSumsUp(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 5000, "val.bin": 1000})
	copy(all["val.bin"][100:], all["a.bin"][3001:3901])
	saveTokens(t, "val.bin", all["val.bin"])
	testfiles.Write(t, map[string]string{"vocab.json": `{"kind": "byte", "vocab_size": 256}`})
	r := checkAll(t, small+"[splits.train]\ntokens = 'a.bin'\n[splits.val]\ntokens = 'val.bin'\n")
	var out strings.Builder
	r.Print(&out)
	text := ""
	for _, v := range all["a.bin"][3001:3033] {
		text += string(rune(v))
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 6 || !strings.HasSuffix(lines[0], ": no problems") || lines[1] != "90% of val (900 tokens) is also in train" || lines[3] != fmt.Sprintf("    %q", text) {
		t.Errorf("%q, want %q", lines, text)
	}
}

// Check reports each fault once, with its position and size, and nothing else.
func TestCheckFindsFaults(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(t *testing.T, all map[string][]uint16)
		want  string
	}{
		{"vocabulary", func(t *testing.T, all map[string][]uint16) {
			all["a.bin"][4321], all["a.bin"][4400] = 100, 65535
			saveTokens(t, "a.bin", all["a.bin"])
		}, "vocabulary a.bin 4321 2 . 0\n"},
		{"zeros", func(t *testing.T, all map[string][]uint16) {
			clear(all["a.bin"][2500:])
			saveTokens(t, "a.bin", all["a.bin"])
		}, "zeros a.bin 2500 2500 . 0\n"},
		{"truncated", func(t *testing.T, all map[string][]uint16) {
			os.Truncate("b.bin", 4001)
		}, "unreadable b.bin 0 0 . 0\n"},
		{"missing", func(t *testing.T, all map[string][]uint16) {
			os.Remove("b.bin")
		}, "unreadable b.bin 0 0 . 0\n"},
		{"duplicate", func(t *testing.T, all map[string][]uint16) {
			saveTokens(t, "b.bin", all["a.bin"])
			os.Truncate("b.mask", 5000)
		}, "duplicate b.bin 0 5000 a.bin 0\n"},
		{"overlap", func(t *testing.T, all map[string][]uint16) {
			copy(all["b.bin"][7:1501], all["a.bin"][3001:])
			saveTokens(t, "b.bin", all["b.bin"])
		}, "overlap b.bin 7 1494 a.bin 3001\n"},
		{"overlap of splits", func(t *testing.T, all map[string][]uint16) {
			saveTokens(t, "val.bin", all["b.bin"][123:1123])
		}, "leak val.bin 0 1000 b.bin 123\n"},
		{"repeats", func(t *testing.T, all map[string][]uint16) {
			copy(all["a.bin"][3500:], all["a.bin"][1000:2100])
			saveTokens(t, "a.bin", all["a.bin"])
		}, "overlap a.bin 3500 1100 a.bin 1000\n"},
		{"index", func(t *testing.T, all map[string][]uint16) {
			ends := make([]byte, 0, 8*4000)
			for i := range 2999 {
				ends = binary.LittleEndian.AppendUint64(ends, uint64(i+1))
			}
			copy(ends[8*2000:], ends[8*1500:8*1501]) // opening does not check this block
			testfiles.Write(t, map[string]string{"b.bin.index": string(binary.LittleEndian.AppendUint64(ends, 3000))})
		}, "documents b.bin 0 0 . 0\n"},
		{"mask", func(t *testing.T, all map[string][]uint16) {
			os.Truncate("b.mask", 2999)
		}, "split . 0 0 . 0\n"},
		{"too short", func(t *testing.T, all map[string][]uint16) {
			saveTokens(t, "val.bin", all["val.bin"][:10])
		}, "split . 0 0 . 0\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := writeRandomTokens(t, map[string]int{"a.bin": 5000, "b.bin": 3000, "val.bin": 1000})
			testfiles.Write(t, map[string]string{"a.mask": strings.Repeat("\x01", 5000), "b.mask": strings.Repeat("\x01", 3000)})
			test.spoil(t, all)
			r := checkAll(t, small+"[splits.train]\ntokens = ['a.bin', 'b.bin']\n[[splits.train.arrays]]\nname = 'mask'\n"+
				"files = ['a.mask', 'b.mask']\ndtype = 'uint8'\n[splits.val]\ntokens = 'val.bin'\n")
			if got := problemLines(r); got != test.want {
				t.Errorf("%s\nwant %s\n%+v", got, test.want, r)
			}
		})
	}
}

// Check finds every document that does not begin with BOS, and each file counts its own. Empty
// documents do not begin.
func TestCheckFindsDocumentsWithoutBOS(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 5000, "b.bin": 3000})
	for name, tokens := range all {
		var ends []byte
		for i := 0; i < len(tokens); i += 100 {
			tokens[i], ends = 0, binary.LittleEndian.AppendUint64(ends, uint64(i+100))
		}
		if name == "a.bin" {
			ends = slices.Concat(make([]byte, 16), ends[:80], ends[72:], ends[len(ends)-8:])
		}
		testfiles.Write(t, map[string]string{name + ".index": string(ends)})
	}
	all["b.bin"][1700], all["b.bin"][2900] = 5, 6
	saveTokens(t, "a.bin", all["a.bin"])
	saveTokens(t, "b.bin", all["b.bin"])
	r := checkAll(t, small+"rows = 'packed'\nbos = 0\n[splits.train]\ntokens = ['a.bin', 'b.bin']\n")
	if got, want := problemLines(r), "documents b.bin 1700 2 . 0\n"; got != want {
		t.Fatalf("%swant %s%+v", got, want, r)
	}
	const want = "b.bin: document 17 begins with token 5, at index 1700, "
	if got := string(r.Problems[0].Message); !strings.Contains(got, want) || !strings.HasSuffix(got, " (2 of 30 documents in this file begin otherwise)") {
		t.Errorf("%s, want %s", got, want)
	}
}

// Check finds documents that lack their end-of-text token, except the last of a file, and counts
// the tokens inside documents. Where documents lie in parts and blocks makes no difference, nor do
// empty documents.
func TestCheckFindsDocumentsWithoutEOT(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, test := range []struct {
		name, settings string
		lacking        float64 // fraction of documents without the token, or -1 for all
		inside         float64 // fraction of other tokens that are the token
		begins         bool    // whether documents begin with the token instead
	}{
		{"good", "eot = 0", 0, 0, false},
		{"inside", "eot = 0", 0, 0.01, false},
		{"from vocab.json", "", 0.1, 0.01, false},
		{"some", "eot = 0\ndocuments = true", 0.1, 0.01, false},
		{"some, packed", "eot = 0\nrows = 'packed'", 0.1, 0, false},
		{"all", "eot = 0", -1, 0, false},
		{"padding", "eot = 0\nrows = 'packed'", -1, 0, true},
		{"begins", "eot = 0", -1, 0, true},
		{"files", "eot = 0\ndocuments = 'files'", 0.1, 0.01, false},
		{"unknown", "", 0.1, 0.01, false},
	} {
		all := writeRandomTokens(t, map[string]int{"a.bin": 50000, "b.bin": 30000})
		var want []string
		var counted int64
		for _, name := range []string{"a.bin", "b.bin"} {
			tokens, index, first, lacking := all[name], []byte(nil), -1, 0
			isEnd := func(i int) bool { return i == len(tokens)-1 }
			for i, next := 0, 0; i < len(tokens); i++ {
				begin := i == next
				if begin {
					next = min(i+2+rng.IntN(200), len(tokens))
					if i == 0 || rng.IntN(5) == 0 {
						index = binary.LittleEndian.AppendUint64(index, uint64(i))
					}
					index = binary.LittleEndian.AppendUint64(index, uint64(next))
				}
				switch end := i == next-1; {
				case end && test.lacking >= 0 && rng.Float64() >= test.lacking, begin && test.begins:
					tokens[i] = 0
				case end && !isEnd(i):
					if lacking++; first < 0 {
						first = i
					}
				case !end && rng.Float64() < test.inside:
					tokens[i], counted = 0, counted+1
				}
			}
			saveTokens(t, name, tokens)
			index = binary.LittleEndian.AppendUint64(index, uint64(len(tokens)))
			testfiles.Write(t, map[string]string{name + ".index": string(index)})
			if lacking > 0 {
				want = append(want, fmt.Sprintf("eot %s %d %d . 0\n", name, first, lacking))
			}
		}
		if test.name == "from vocab.json" {
			testfiles.Write(t, map[string]string{"vocab.json": `{"kind": "ids", "vocab_size": 100, "token_dtype": "uint16", "eot": 0, "eot_at": "end"}`})
		}
		if slices.Contains([]string{"padding", "files", "unknown"}, test.name) {
			want, counted = nil, 0
		} else if test.begins {
			counted = 0
			for _, tokens := range all {
				for _, token := range tokens {
					if token == 0 {
						counted++
					}
				}
			}
		}
		c := &check{partSize: 8192, leakPart: leakPart, stderr: io.Discard}
		testfiles.NoError(t, c.open(load(t, small+test.settings+"\n[splits.train]\ntokens = ['a.bin', 'b.bin']\n")))
		testfiles.NoError(t, c.checkDocuments(t.Context()))
		c.chooseWindow(0)
		testfiles.NoError(t, c.readAll(t.Context()))
		c.reportProblems()
		if got := problemLines(&c.report); got != strings.Join(want, "") || c.report.EOTInside["train"] != counted {
			t.Errorf("%s: %d inside and\n%swant %d and\n%s", test.name, c.report.EOTInside["train"], got, counted, strings.Join(want, ""))
		}
		var out strings.Builder
		c.report.Splits = []string{"train"}
		c.report.Print(&out)
		if says := strings.Contains(out.String(), fmt.Sprintf("the end-of-text token of train occurs %d times inside documents, where", counted)); says != (counted > 0) {
			t.Errorf("%s: %s", test.name, &out)
		}
	}
}

// Elements that are not tokens are compared too, and counted as elements.
func TestCheckOfRows(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 8000, "b.bin": 4000})
	copy(all["b.bin"][80:3920], all["a.bin"][160:])
	saveTokens(t, "b.bin", all["b.bin"])
	r := checkAll(t, "[batch]\nbatch_size = 2\nlayout = 'rows'\ntoken_dtype = 'float32'\nshape = [4]\n[splits.train]\ntokens = ['a.bin', 'b.bin']\n")
	if got, want := problemLines(r), "overlap b.bin 10 480 a.bin 20\n"; got != want || r.Tokens != 1500 || r.VocabularyKnown {
		t.Errorf("%swant %s%+v", got, want, r)
	}
}

// The parts in which files are read make no difference.
func TestCheckParts(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 50000, "b.bin": 30000})
	all["a.bin"][10], all["b.bin"][29999] = 200, 300
	copy(all["b.bin"][:25000], all["a.bin"][20001:])
	saveTokens(t, "a.bin", all["a.bin"])
	saveTokens(t, "b.bin", all["b.bin"])
	c := &check{partSize: 8192, leakPart: leakPart, stderr: io.Discard}
	testfiles.NoError(t, c.open(load(t, small+"[splits.train]\ntokens = ['a.bin', 'b.bin']\n")))
	c.chooseWindow(0)
	testfiles.NoError(t, c.readAll(t.Context()))
	c.reportProblems()
	if got := problemLines(&c.report); got != "vocabulary a.bin 10 1 . 0\nvocabulary b.bin 29999 1 . 0\noverlap b.bin 0 25000 a.bin 20001\n" {
		t.Error(got)
	}
}

// Only passages of at least MinOverlap tokens are reported, however long that is.
func TestCheckOfLongOverlaps(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 300_000, "b.bin": 250_000})
	copy(all["b.bin"][7:200_007], all["a.bin"][90_000:])
	saveTokens(t, "b.bin", all["b.bin"])
	for least, want := range map[int64]string{200_000: "overlap b.bin 7 200000 a.bin 90000\n", 200_100: "", math.MaxInt64: ""} {
		r, err := Check(t.Context(), load(t, small+"[splits.train]\ntokens = ['a.bin', 'b.bin']\n"), CheckOptions{MinOverlap: least}, io.Discard)
		testfiles.NoError(t, err)
		if got := problemLines(r); got != want || r.MinPassage != least {
			t.Errorf("%d or more tokens: %s, passages of %d, want %s", least, got, r.MinPassage, want)
		}
	}
}

// WriteIndex replaces a different index only with force, and rejects an eot that does not occur in
// the file.
func TestWriteIndex(t *testing.T) {
	t.Chdir(t.TempDir())
	saveTokens(t, "a.bin", []uint16{5, 6, 0, 7, 0, 0, 8})
	o := cache.Options{}
	o.DType = "uint16"
	write := func(eot int64, force bool) (Index, error) {
		return WriteIndex(t.Context(), "a.bin", o, eot, force, io.Discard)
	}
	ends := func() (list []uint64) {
		raw := testfiles.Bytes(t, "a.bin.index", 0, 1000)
		for ; len(raw) >= 8; raw = raw[8:] {
			list = append(list, binary.LittleEndian.Uint64(raw))
		}
		return list
	}
	if index, err := write(0, false); err != nil || index.Documents != 4 {
		t.Fatal(index, err)
	}
	if want := []uint64{3, 5, 6, 7}; !slices.Equal(ends(), want) {
		t.Errorf("ends %v, want %v", ends(), want)
	}
	if index, err := write(0, false); err != nil {
		t.Error("the same again:", index, err)
	}
	if _, err := write(8, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Error(err)
	}
	if index, err := write(8, true); err != nil || index.Documents != 1 || !slices.Equal(ends(), []uint64{7}) {
		t.Error(index, err, ends())
	}
	for _, eot := range []int64{9, 1 << 16} {
		if _, err := write(eot, true); err == nil || !strings.Contains(err.Error(), "--eot") {
			t.Error(eot, err)
		}
	}
	if list, err := os.ReadDir("."); err != nil || len(list) != 2 {
		t.Errorf("%v is left, %v", list, err)
	}
}

// For Megatron-LM's files, WriteIndex writes an index with force, which counts instead of the .idx.
func TestWriteIndexOfMegatron(t *testing.T) {
	dir, err := filepath.Abs("../../../cache/testdata")
	testfiles.NoError(t, err)
	t.Chdir(t.TempDir())
	for _, suffix := range []string{".bin", ".idx"} {
		testfiles.Write(t, map[string]string{"a" + suffix: string(testfiles.Bytes(t, dir+"/a_text_document"+suffix, 0, 1<<20))})
	}
	o := cache.Options{Documents: cache.DocumentsIndexed}
	a, err := cache.Open([]string{"a.bin"}, o)
	testfiles.NoError(t, err)
	eot := int64(0)
	testfiles.NoError(t, a.Read([]array.Window{{Start: 41, Len: 1}}, func(_ int, raw []byte) error {
		eot = int64(a.DType().Bits(raw))
		return nil
	}))
	if _, err := WriteIndex(t.Context(), "a.bin", cache.Options{}, eot, false, io.Discard); err == nil || !strings.Contains(err.Error(), "use --force to write a.bin.index, which counts instead") {
		t.Error(err)
	}
	if index, err := WriteIndex(t.Context(), "a.bin", cache.Options{}, eot, true, io.Discard); err != nil || index.Documents != 2 {
		t.Error(index, err)
	}
	ends := make([]int64, 2)
	a, err = cache.Open([]string{"a.bin"}, o)
	testfiles.NoError(t, err)
	testfiles.NoError(t, a.Documents().Ends(0, ends))
	if !slices.Equal(ends, []int64{42, 100}) {
		t.Errorf("documents end at %d", ends)
	}
}
