package prepare

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/vocabulary"
)

//go:embed bpe/testdata/pretokenizers.json
var preTokenizers []byte

// writeTokenizers writes tokenizers that split texts like GPT-2, Llama 3, Qwen and those in bpe's
// testdata, or are in the style of SentencePiece, and returns the names of their files. Their
// tokens are all bytes, a few merges, and addedTokens, some of which have flags.
func writeTokenizers(t testing.TB) (names []string) {
	t.Helper()
	vocab, merges := map[string]int{}, []string{}
	other := rune(256) // stands for the next invisible byte
	alphabet := map[byte]rune{}
	for b := range 256 {
		r := rune(b)
		if r <= ' ' || 0x7f <= r && r <= 0xa0 || r == 0xad {
			r, other = other, other+1
		}
		vocab[string(r)], alphabet[byte(b)] = b, r
	}
	space := string(alphabet[' '])
	for i, pair := range [][2]string{{"N", "e"}, {"Ne", "w"}, {space, "Y"}, {space + "Y", "o"}, {space, "N"}, {"o", "r"}, {"o", "l"}, {string(alphabet[0x85]), space}} {
		merges = append(merges, pair[0]+" "+pair[1])
		vocab[pair[0]+pair[1]] = 256 + i
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
	split := func(expression string) map[string]any {
		return map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]string{"Regex": expression}, "behavior": "Isolated"}, byteLevel,
		}}
	}
	const words = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	all := map[string]map[string]any{
		"gpt2":  {"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false}},
		"llama": {"pre_tokenizer": split(fmt.Sprintf(words, "{1,3}"))},
		"qwen":  {"pre_tokenizer": split(fmt.Sprintf(words, "")), "normalizer": map[string]any{"type": "NFC"}},
	}
	var more map[string]any
	testfiles.NoError(t, json.Unmarshal(preTokenizers, &more))
	for name, stage := range more {
		all[name] = map[string]any{"pre_tokenizer": stage}
	}
	withFlags := map[string]bool{}
	for name, stages := range all {
		stages["model"] = map[string]any{"type": "BPE", "vocab": vocab, "merges": merges}
		flagged := maps.Clone(stages)
		all[name+"_flags"], withFlags[name+"_flags"] = flagged, true
	}
	for name, stages := range sentencePieceStages {
		all[name], withFlags[name] = maps.Clone(stages), true
		all[name]["model"] = sentencePieceModel()
	}
	for name, stages := range all {
		vocab := stages["model"].(map[string]any)["vocab"].(map[string]int)
		stages["added_tokens"] = writtenTokens(vocab, withFlags[name])
		raw, err := json.Marshal(stages)
		testfiles.NoError(t, err)
		testfiles.Write(t, map[string]string{name + ".json": string(raw)})
		names = append(names, name+".json")
	}
	return names
}

// writtenTokens returns addedTokens as tokenizer.json has them.
func writtenTokens(vocab map[string]int, flags bool) (written []map[string]any) {
	next := len(vocab)
	for i, content := range addedTokens {
		id, ok := vocab[content]
		if !ok {
			id, next = next, next+1
		}
		written = append(written, map[string]any{"id": id, "content": content, "special": i%5 == 4, "normalized": i%2 == 1,
			"single_word": flags && i%7 == 1, "lstrip": flags && i%3 == 0, "rstrip": flags && i%4 <= 1})
	}
	return written
}

// sentencePieceStages replace spaces by ▁, and put one before a text or each part of it.
var sentencePieceStages = map[string]map[string]any{
	"prepend": {"normalizer": map[string]any{"type": "Sequence", "normalizers": []any{
		map[string]any{"type": "Prepend", "prepend": "▁"},
		map[string]any{"type": "Replace", "pattern": map[string]string{"String": " "}, "content": "▁"},
	}}},
	"replace":          {"normalizer": map[string]any{"type": "Replace", "pattern": map[string]string{"String": " "}, "content": "▁"}},
	"metaspace_first":  {"pre_tokenizer": map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}},
	"metaspace_always": {"pre_tokenizer": map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}},
}

func sentencePieceModel() map[string]any {
	vocab, merges := map[string]int{"▁": 0, "<unk>": 1}, []string{}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
	}
	for _, r := range "NewYord汉字。.\u0301a\u2028" {
		vocab[string(r)] = len(vocab)
	}
	for _, pair := range [][2]string{{"▁", "▁"}, {"▁", "N"}, {"N", "e"}, {"Ne", "w"}, {"▁", "Y"}, {"▁Y", "o"}, {"o", "r"}, {".", "."}, {"▁", "▁▁"},
		{"w", "or"}, {"汉", "字"}, {"。", "字"}, {"e", "\u0301"}, {"a", "▁"}, {"\u2028", "▁"}} {
		merges = append(merges, pair[0]+" "+pair[1])
		if _, ok := vocab[pair[0]+pair[1]]; !ok {
			vocab[pair[0]+pair[1]] = len(vocab)
		}
	}
	return map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": true, "unk_token": "<unk>"}
}

// addedTokens are the texts of added tokens. Every fifth one is special, and every second one is
// found in normalized text.
var addedTokens = []string{"New York", "York State", "\n\n\n", "\nCity", "w Y special", ".\nNew", "é x", "K y", "汉 字", "z\n", "  ", "\né", " City", "New", " "}

func openTokenizer(t testing.TB, by string, special bool) tokenizer {
	t.Helper()
	tokenizer, err := (&settings{By: by, Special: special}).openTokenizer(nil)
	testfiles.NoError(t, err)
	return tokenizer
}

// somePieces returns n random pieces, in which words, white space and added tokens meet everywhere.
func somePieces(rng *rand.Rand, n int) string {
	pieces := []string{" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "a", "b'", "'s", "'S", "x'll", "Hello", "É", "e\u0301", "\u0301", "汉", "字。", "。",
		"1", "1234", "½", ".", "...", "/", "//", "_", "\"", "🚀", "👨‍👩‍👧", "ह", "ि", "ŉ", "ſ", "ｱ", "한", "ᄒ", "ᅡ", "\ufeff", "\x00", "ǅ", "ʰ", "م", " م", "<|endoftext|>",
		"New", " York", "State", "w", " Y", "\u212a", " y", "x", "z", " word word", "▁", "  \t",
		"ภา", "ษ\u0e48", "\u0e48\n\n", "ก\u0e48\u0e38", "!\n\n", "A\u030a", "=\u0338", "\u2126", "\u2000", "\u037e", "!\r\n \n", "\U0001d15e"}
	var b strings.Builder
	for range n {
		if rng.IntN(4) == 0 {
			b.WriteString(addedTokens[rng.IntN(len(addedTokens))])
		} else {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
	}
	return b.String()
}

// A text that is cut at a position from Cut has the same tokens as the whole text.
func TestCut(t *testing.T) {
	t.Chdir(t.TempDir())
	names := append(writeTokenizers(t), slices.Collect(maps.Keys(tokenizers))...)
	rng, texts := rand.New(rand.NewPCG(9, 10)), 20_000
	if testing.Short() {
		texts = 5000
	}
	for i, name := range append(names, names[:7]...) {
		if name == vocabulary.Char || name == vocabulary.Byte {
			continue
		}
		tokenizer := openTokenizer(t, name, i >= len(names))
		methods := map[string]func([]byte) int{"Cut": tokenizer.Cut}
		if bpe, ok := tokenizer.(bpeTokenizer); ok && !strings.Contains(name, "metaspace") {
			// Cut calls it only if there is no simpler place.
			methods["LastPieceEnd"] = bpe.LastPieceEnd
		}
		for method, cut := range methods {
			e, cuts := tokenizer.NewEncoder(), 0
			for range texts / (1 + len(methods)) {
				text := []byte(somePieces(rng, 1+rng.IntN(8)))
				for end := range text {
					n := cut(text[:end])
					if n == 0 {
						continue
					}
					cuts++
					whole, parts := e.Append(nil, text), appendRest(e, e.Append(nil, text[:n]), text[n:])
					if !slices.Equal(whole, parts) {
						t.Fatalf("%s: %q has tokens %v, and %v cut by %s at %d of %d", name, text, whole, parts, method, n, end)
					}
				}
			}
			if cuts < 100 {
				t.Errorf("%s: %s cut %d times", name, method, cuts)
			}
		}
	}
}

// Texts that normalization changes can be cut, too, however they are split.
func TestCutNormalized(t *testing.T) {
	t.Chdir(t.TempDir())
	pieces := []string{"ภา", "ษ\u0e48", "\u0e48\n\n", "ก\u0e48\u0e38", "\u0e38", "e\u0301", "A\u030a\n", "=\u0338", "\u2126", "\u2000", "\u037e", "\U0001d15e", "ᄒ", "ᅡ",
		"ि", "\u09c7\u09be", "1", "\n", " ", "!\r\n", "'s", "é", "\u0898\u0301"}
	rng := rand.New(rand.NewPCG(15, 16))
	some := func(n int, of []string) string {
		var b strings.Builder
		for range n {
			b.WriteString(of[rng.IntN(len(of))])
		}
		return b.String()
	}
	for _, name := range writeTokenizers(t) {
		if _, isSentencePiece := sentencePieceStages[strings.TrimSuffix(name, ".json")]; isSentencePiece || strings.Contains(name, "_flags") {
			continue
		}
		var f map[string]any
		raw, err := os.ReadFile(name)
		testfiles.NoError(t, cmp.Or(err, json.Unmarshal(raw, &f)))
		f["added_tokens"], f["normalizer"] = []any{}, map[string]any{"type": "NFC"}
		raw, err = json.Marshal(f)
		testfiles.NoError(t, err)
		testfiles.Write(t, map[string]string{"t.json": string(raw)})
		tokenizer := openTokenizer(t, "t.json", false)
		e, cuts := tokenizer.NewEncoder(), 0
		for range 1000 {
			text := []byte(some(3+rng.IntN(8), pieces))
			for end := range text {
				n := tokenizer.(bpeTokenizer).LastPieceEnd(text[:end])
				if n == 0 {
					continue
				}
				cuts++
				whole, parts := e.Append(nil, text), appendRest(e, e.Append(nil, text[:n]), text[n:])
				if !slices.Equal(whole, parts) {
					t.Fatalf("%s: %q has tokens %v, and %v cut at %d of %d", name, text, whole, parts, n, end)
				}
			}
		}
		if cuts < 1000 {
			t.Errorf("%s: cut %d times", name, cuts)
		}
		for what, text := range map[string]string{
			"Thai":       strings.Repeat("ภาษา\u0e48\n\n", 100),
			"Thai marks": strings.Repeat("ภาก\u0e48\u0e38\n\n", 100),
			"accents":    strings.Repeat("e\u0301\n\n", 100),
			"Hangul":     strings.Repeat("ᄒ\u1161.", 100),
		} {
			if n := tokenizer.Cut([]byte(text)); n < len(text)/2 {
				t.Errorf("%s: %s is cut at %d of %d", name, what, n, len(text))
			}
		}
	}
}

// Texts without words that follow each other are encoded in parts, too, whose tokens are those of
// the whole.
func TestPrepareTextsWithoutWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	some := func(separator string, parts ...string) string {
		var b strings.Builder
		for b.Len() < 60_000 {
			for range 1 + rng.IntN(20) {
				b.WriteString(parts[rng.IntN(len(parts))])
			}
			b.WriteString(separator)
		}
		return b.String()
	}
	texts := map[string]string{
		"Chinese with CRLF":        some("\r\n", "汉", "字", "是", "。", "，"),
		"Chinese with blank lines": some("。\n\n", "汉", "字", "是", "，"),
		"Japanese in quotes":       some("」\n「", "か", "な", "漢", "字", "。", "ー"),
		"Thai":                     some("\n\n", "ภ", "า", "ษ", "ไ", "ท", "ย"),
		"numbers":                  some("\n", "1", "23", "456", "7.5", "-", ","),
		"numbers in columns":       some("\r\n", "1 ", "23  ", "456\t"),
		"chess games":              some("\n\n", "1.e4 e5 ", "2.Nf3 Nc6 ", "O-O 12.Qxd5+ ", "{[%clk 0:01]} "),
		"YAML":                     some("\n", "- 1: 2\n", "  - x_1: \"y\"\n", "    3: [4, 5]\n"),
		"symbols":                  some("\n", "=", "==", "#", "(", "😀", "…"),
		"a single line":            some("", "汉", "1", "!", "a", "B", "é"),
		"blank lines":              some("\n \n\t\n", "!", "。", "5"),
	}
	t.Chdir(t.TempDir())
	names := append(writeTokenizers(t), "gpt2", "cl100k", "o200k")
	for i, what := range slices.Sorted(maps.Keys(texts)) {
		file := strings.ReplaceAll(what, " ", "_")
		testfiles.Write(t, map[string]string{file: texts[what]})
		useSmallChunks(t, 1<<10, 16<<10)
		for j, name := range names {
			// In these, the added tokens affect almost every cut.
			_, isSentencePiece := sentencePieceStages[strings.TrimSuffix(name, ".json")]
			isSkipped := isSentencePiece || strings.Contains(name, "_flags") || strings.HasPrefix(name, "qwen")
			if isSkipped || testing.Short() && j%5 != i%5 {
				continue
			}
			wantTokens(t, file+" --as text --by "+name, openTokenizer(t, name, false), texts[what])
		}
	}
}

// Texts with many added tokens have the same tokens, however small the chunks are.
func TestPrepareAddedTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	rng := rand.New(rand.NewPCG(11, 12))
	for i, name := range writeTokenizers(t) {
		sizes := []int{10, 50, 1000}
		if testing.Short() {
			sizes = sizes[i%3:][:1]
		}
		for _, size := range sizes {
			useSmallChunks(t, size, 1<<20)
			text := somePieces(rng, 3000)
			testfiles.Write(t, map[string]string{"a.txt": text, "a.jsonl": lines([]string{text})})
			for _, special := range []string{"", " --special"} {
				wantTokens(t, "a.txt --as text --by "+name+special, openTokenizer(t, name, special != ""), text)
				wantTokens(t, "a.jsonl --by "+name+special, openTokenizer(t, name, special != ""), text)
			}
		}
	}
}

func wantTokens(t testing.TB, args string, tokenizer tokenizer, text string) {
	t.Helper()
	prepared(t, args+" --val 0 --eot none --force --out out")
	var want []byte
	tokens := tokenizer.NewEncoder().Append(nil, []byte(text))
	for _, token := range tokens {
		want = binary.LittleEndian.AppendUint16(want, uint16(token))
		if tokenizer.Size() > 1<<16 {
			want = binary.LittleEndian.AppendUint16(want, uint16(token>>16))
		}
	}
	if got, err := os.ReadFile("out/train.bin"); !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that differ from the %d tokens wanted (%v)", args, len(got), len(tokens), err)
	}
}

// An added token across the end of a chunk stays one token.
func TestPrepareAddedTokenAcrossChunks(t *testing.T) {
	t.Chdir(t.TempDir())
	name := writeTokenizers(t)[0]
	tokenizer := openTokenizer(t, name, false)
	for _, token := range []string{"New York", "York State", "\nCity", "\n\n\n"} {
		for offset := range len(token) + 2 {
			text := strings.Repeat("words and lines\n", chunkSize/16+1)[:chunkSize-offset] + token + strings.Repeat("x", 100)
			testfiles.Write(t, map[string]string{"a.txt": text})
			wantTokens(t, "a.txt --by "+name, tokenizer, text)
		}
	}
}

// Bytes that the vocabulary lacks are counted. A document that has no others is left out, wherever
// it is in a shard.
func TestPrepareLackingBytes(t *testing.T) {
	t.Chdir(t.TempDir())
	vocab := map[string]int{"a": 0, "b": 1, "ab": 2}
	for unknown, want := range map[string]string{
		"":  `dropped: 5 bytes that the vocabulary lacks, 0xa9 (2), 0xc3 (2), 0x01 (1)`,
		"a": `encoded as a: 5 bytes that the vocabulary lacks, 0xa9 (2), 0xc3 (2), 0x01 (1)`,
	} {
		raw, err := json.Marshal(map[string]any{
			"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{"a b"}, "unk_token": unknown},
			"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false},
			"added_tokens":  []any{map[string]any{"id": 3, "content": "<e>", "special": true}},
		})
		testfiles.NoError(t, err)
		testfiles.Write(t, map[string]string{"t.json": string(raw), "a.jsonl": lines([]string{"aéb", "é", "\x01"}),
			"b/1.jsonl": lines([]string{"é", "ab", "é", "ab", "é"}), "b/2.txt": "é", "b/3.txt": "ab"})
		if said := prepared(t, "a.jsonl --by t.json --val 0 --eot none --force --out out"); !strings.Contains(said, want) {
			t.Errorf("it said %s, want %s", said, want)
		}
		if got, want := readTokens(t, "out/train.bin"), map[string][]uint16{"": {2}, "a": {0, 0, 2, 0, 0, 0}}[unknown]; !slices.Equal(got, want) {
			t.Errorf("unk_token %q: %d, want %d", unknown, got, want)
		}
		for eot, documents := range map[string]int64{"none": 3, "end": 7} {
			const empty = "left out because they have no text: 4 documents; the first is line 1 of b/1.jsonl"
			if unknown != "" {
				documents = 7
			}
			said := prepared(t, "b --by t.json --eot-token <e> --val 0 --force --out out --eot "+eot)
			if index := filesOf(t, "out")["train.bin.index"]; readManifest(t).Splits["train"].Documents != documents || int64(len(index)) != 8*documents ||
				strings.Contains(said, empty) != (documents == 3) {
				t.Errorf("unk_token %q, --eot %s: an index of %d bytes, want %d documents; it said %s", unknown, eot, len(index), documents, said)
			}
			want := fmt.Sprintf(" tokens in %d documents", documents)
			if said := prepared(t, "b --by t.json --eot-token <e> --val 0 --dry-run --eot "+eot); !strings.Contains(said, want) {
				t.Errorf("--dry-run said %s, want%s", said, want)
			}
		}
	}
}

// A tokenizer.json of Mistral with the expression of Llama 3 is used, with a warning.
func TestPrepareMistral(t *testing.T) {
	t.Chdir(t.TempDir())
	writeTokenizers(t)
	var f map[string]any
	raw, err := os.ReadFile("llama.json")
	testfiles.NoError(t, err)
	testfiles.NoError(t, json.Unmarshal(raw, &f))
	vocab := f["model"].(map[string]any)["vocab"].(map[string]any)
	for len(vocab) < 131_071 {
		vocab[fmt.Sprintf("unused%d", len(vocab))] = len(vocab)
	}
	testfiles.Write(t, map[string]string{"a.txt": "text"})
	for special, warns := range map[string]bool{"[INST]": true, "<|eot_id|>": false} {
		f["added_tokens"] = []any{map[string]any{"id": len(vocab), "content": special, "special": true}}
		raw, err := json.Marshal(f)
		testfiles.NoError(t, err)
		testfiles.Write(t, map[string]string{"t.json": string(raw)})
		if said := prepared(t, "a.txt --by t.json --dry-run"); strings.Contains(said, "give the tekken.json of the same model") != warns {
			t.Errorf("%s: it said %s", special, said)
		}
	}
}
