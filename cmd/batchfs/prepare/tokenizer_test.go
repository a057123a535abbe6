package prepare

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/vocabulary"
)

//go:embed bpe/testdata/pretokenizers.json
var preTokenizers []byte

// writeTokenizers writes tokenizers that split texts like GPT-2, Llama 3, Qwen and those in bpe's
// testdata, and returns the names of their files. Their tokens are all bytes, a few merges, and
// addedTokens.
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
	var added []map[string]any
	for i, content := range addedTokens {
		added = append(added, map[string]any{"id": 300 + i, "content": content, "special": i%5 == 4, "normalized": i%2 == 1})
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
	for name, stages := range all {
		stages["model"] = map[string]any{"type": "BPE", "vocab": vocab, "merges": merges}
		stages["added_tokens"] = added
		raw, err := json.Marshal(stages)
		testfiles.NoError(t, err)
		testfiles.Write(t, map[string]string{name + ".json": string(raw)})
		names = append(names, name+".json")
	}
	return names
}

// addedTokens are the texts of added tokens. Every fifth one is special, and every second one is
// found in normalized text.
var addedTokens = []string{"New York", "York State", "\n\n\n", "\nCity", "w Y special", ".\nNew", "é x", "K y", "汉 字", "z\n", "  ", "\né", " City", "New", " "}

func openTokenizer(t testing.TB, by string, special bool) tokenizer {
	t.Helper()
	tokenizer, err := (&settings{By: by, Special: special}).openTokenizer()
	testfiles.NoError(t, err)
	return tokenizer
}

// somePieces returns n random pieces, in which words, white space and added tokens meet everywhere.
func somePieces(rng *rand.Rand, n int) string {
	pieces := []string{" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "a", "b'", "'s", "'S", "x'll", "Hello", "É", "e\u0301", "\u0301", "汉", "字。", "。",
		"1", "1234", "½", ".", "...", "/", "//", "_", "\"", "🚀", "👨‍👩‍👧", "ह", "ि", "ŉ", "ſ", "ｱ", "한", "ᄒ", "ᅡ", "\ufeff", "\x00", "ǅ", "ʰ", "م", " م", "<|endoftext|>",
		"New", " York", "State", "w", " Y", "\u212a", " y", "x", "z", " word word"}
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
		e, cuts := tokenizer.NewEncoder(), 0
		for range texts {
			text := []byte(somePieces(rng, 1+rng.IntN(8)))
			for end := range text {
				n := tokenizer.Cut(text[:end])
				if n == 0 {
					continue
				}
				cuts++
				whole, parts := e.Append(nil, text), e.Append(e.Append(nil, text[:n]), text[n:])
				if !slices.Equal(whole, parts) {
					t.Fatalf("%s: %q has tokens %v, and %v cut at %d", name, text, whole, parts, n)
				}
			}
		}
		if cuts < 1000 {
			t.Errorf("%s: cut %d times", name, cuts)
		}
	}
}

// Texts with many added tokens have the same tokens, however small the chunks are.
func TestPrepareAddedTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	rng := rand.New(rand.NewPCG(11, 12))
	for _, name := range writeTokenizers(t) {
		for _, size := range []int{10, 50, 1000} {
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
	var want []uint16
	for _, token := range tokenizer.NewEncoder().Append(nil, []byte(text)) {
		want = append(want, uint16(token))
	}
	if got := readTokens(t, "out/train.bin"); !slices.Equal(got, want) {
		t.Errorf("%s: %d tokens that differ from the %d wanted", args, len(got), len(want))
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
