package bpe

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// writeSmallTokenizer writes a tokenizer.json with all bytes and three more tokens, which edit may
// change.
func writeSmallTokenizer(t *testing.T, edit func(f, model map[string]any)) string {
	t.Helper()
	vocab := map[string]int{"ab": 256, "abc": 257, "Ġab": 258}
	for r, b := range byteAlphabet() {
		vocab[string(r)] = int(b)
	}
	model := map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{"a b", []string{"Ġ", "ab"}}, "ignore_merges": false}
	f := map[string]any{
		"model": model,
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]string{"Regex": qwen2.patterns[0]}, "behavior": "Isolated"},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		}},
		"added_tokens": []any{
			map[string]any{"id": 300, "content": "<|endoftext|>", "special": true},
			map[string]any{"id": 301, "content": "<a>", "special": false, "normalized": true},
		},
	}
	edit(f, model)
	raw, err := json.Marshal(f)
	testfiles.NoError(t, err)
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	testfiles.Write(t, map[string]string{path: string(raw)})
	return path
}

func TestOpen(t *testing.T) {
	const text = "abc ab<a><|endoftext|>e\u0301"
	special := []uint32{'<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>'}
	for _, test := range []struct {
		name string
		edit func(f, model map[string]any)
		want []uint32
	}{
		{"merges", func(f, model map[string]any) {}, slices.Concat([]uint32{256, 'c', 258, 301}, special, []uint32{'e', 0xcc, 0x81})},
		{"whole pieces", func(f, model map[string]any) { model["ignore_merges"] = true },
			slices.Concat([]uint32{257, 258, 301}, special, []uint32{'e', 0xcc, 0x81})},
		{"NFC", func(f, model map[string]any) { f["normalizer"] = map[string]any{"type": "NFC"} },
			slices.Concat([]uint32{256, 'c', 258, 301}, special, []uint32{0xc3, 0xa9})},
	} {
		tokenizer, err := Open(writeSmallTokenizer(t, test.edit))
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if got := tokenizer.NewEncoder(NewCache()).Append(nil, []byte(text)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		if end, ok := tokenizer.EndOfText(); end != 300 || !ok || tokenizer.Size() != 302 {
			t.Errorf("%s: end %d %v, size %d", test.name, end, ok, tokenizer.Size())
		}
	}
}

func TestOpenRejects(t *testing.T) {
	pre := func(stages ...any) func(f, model map[string]any) {
		return func(f, model map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": stages}
		}
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
	split := func(expression, behavior string) map[string]any {
		return map[string]any{"type": "Split", "pattern": map[string]string{"Regex": expression}, "behavior": behavior}
	}
	for want, edit := range map[string]func(f, model map[string]any){
		"model WordPiece is not supported": func(f, model map[string]any) { model["type"] = "WordPiece" },
		"model Unigram is not supported":   func(f, model map[string]any) { model["type"], model["vocab"] = "Unigram", []any{[]any{"<unk>", 0.0}} },
		"dropout is 0.1":                   func(f, model map[string]any) { model["dropout"] = 0.1 },
		"continuing_subword_prefix":        func(f, model map[string]any) { model["continuing_subword_prefix"] = "##" },
		"end_of_word_suffix":               func(f, model map[string]any) { model["end_of_word_suffix"] = "</w>" },
		`'▁', which stands for no`:         func(f, model map[string]any) { model["vocab"].(map[string]int)["▁a"] = 259 },
		"number 4000000000":                func(f, model map[string]any) { model["vocab"].(map[string]int)["aa"] = 4_000_000_000 },
		"byte 0x61":                        func(f, model map[string]any) { delete(model["vocab"].(map[string]int), "a"); model["merges"] = []any{} },
		`"x", "y" or their concatenation`:  func(f, model map[string]any) { model["merges"] = []string{"x y"} },
		"normalizer NFKC":                  func(f, model map[string]any) { f["normalizer"] = map[string]any{"type": "NFKC"} },
		"post_processor Strange":           func(f, model map[string]any) { f["post_processor"] = map[string]any{"type": "Strange"} },
		"pre_tokenizer Metaspace":          pre(map[string]any{"type": "Metaspace"}),
		"pre_tokenizer Digits":             pre(map[string]any{"type": "Digits"}, byteLevel),
		`expressions ["\\w+"], which`:      pre(split(`\w+`, "Isolated"), byteLevel),
		"out.add(tokenizer.encode(text)":   pre(split(`\w+`, "Isolated"), byteLevel),
		`behavior "MergedWithNext"`:        pre(split(qwen2.patterns[0], "MergedWithNext"), byteLevel),
		"add_prefix_space":                 pre(map[string]any{"type": "ByteLevel", "add_prefix_space": true}),
		`\\s+" "'s|'t|'re|`:                pre(split(qwen2.patterns[0], "Isolated"), map[string]any{"type": "ByteLevel"}),
		"Split is not supported there":     pre(split(qwen2.patterns[0], "Isolated")),
		"pre_tokenizer has no ByteLevel":   func(f, model map[string]any) { f["pre_tokenizer"] = nil },
		"model.byte_fallback is true":      func(f, model map[string]any) { model["byte_fallback"] = true },
		`"<mask>" has single_word`: func(f, model map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 300, "content": "<mask>", "lstrip": true}}
		},
		"not a tokenizer.json of Hugging Face": func(f, model map[string]any) { f["model"] = 5 },
	} {
		path := writeSmallTokenizer(t, edit)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("got %v, want %s: … %s …", err, path, want)
		}
	}
	for path, want := range map[string]string{"/nowhere/tokenizer.json": "no such file", "a.model": "a.model: SentencePiece is not supported",
		writeSmallTekken(t, `\w+`, 258, "</s>", 2):              `out.add(tokenizer.encode(text, bos=False, eos=False))`,
		writeSmallTekken(t, tekken.patterns[0], 300, "</s>", 2): "default_vocab_size is 300",
		writeSmallTekken(t, tekken.patterns[0], 258, "</s>", 3): `"</s>" has the rank 3`} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// writeSmallTekken writes a tekken.json with 3 special tokens, all bytes and one more token.
func writeSmallTekken(t *testing.T, pattern string, size int, special string, rank int) string {
	t.Helper()
	var vocab []map[string]any
	for b := range 256 {
		vocab = append(vocab, map[string]any{"rank": b, "token_bytes": []byte{byte(b)}, "token_str": nil})
	}
	raw, err := json.Marshal(map[string]any{
		"config":         map[string]any{"pattern": pattern, "default_vocab_size": size, "default_num_special_tokens": 3},
		"vocab":          append(vocab, map[string]any{"rank": 256, "token_bytes": []byte("ab")}, map[string]any{"rank": 257, "token_bytes": []byte("abc")}),
		"special_tokens": []any{map[string]any{"rank": rank, "token_str": special, "is_control": true}},
	})
	testfiles.NoError(t, err)
	path := filepath.Join(t.TempDir(), "tekken.json")
	testfiles.Write(t, map[string]string{path: string(raw)})
	return path
}

// Special tokens come first. The last token of the vocabulary is beyond its size.
func TestOpenTekken(t *testing.T) {
	tokenizer, err := Open(writeSmallTekken(t, tekken.patterns[0], 3+257, "</s>", 2))
	testfiles.NoError(t, err)
	if got := tokenizer.NewEncoder(NewCache()).Append(nil, []byte("abc</s>")); !slices.Equal(got, []uint32{3 + 256, 3 + 'c', 3 + '<', 3 + '/', 3 + 's', 3 + '>'}) {
		t.Errorf("tokens %d", got)
	}
	if end, ok := tokenizer.EndOfText(); end != 2 || !ok || tokenizer.Size() != 260 || string(tokenizer.Bytes(259)) != "ab" {
		t.Errorf("end %d %v, size %d", end, ok, tokenizer.Size())
	}
}
