package bpe

import (
	"encoding/json"
	"fmt"
	"os"
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
			map[string]any{"id": 259, "content": "<|endoftext|>", "special": true},
			map[string]any{"id": 260, "content": "<a>", "special": false, "normalized": true},
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
		{"merges", func(f, model map[string]any) {}, slices.Concat([]uint32{256, 'c', 258, 260}, special, []uint32{'e', 0xcc, 0x81})},
		{"whole pieces", func(f, model map[string]any) { model["ignore_merges"] = true },
			slices.Concat([]uint32{257, 258, 260}, special, []uint32{'e', 0xcc, 0x81})},
		{"NFC", func(f, model map[string]any) { f["normalizer"] = map[string]any{"type": "NFC"} },
			slices.Concat([]uint32{256, 'c', 258, 260}, special, []uint32{0xc3, 0xa9})},
	} {
		tokenizer, err := Open(writeSmallTokenizer(t, test.edit))
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if got := tokenizer.NewEncoder(NewCache()).Append(nil, []byte(text)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		if end, ok := tokenizer.EndOfText(); end != 259 || !ok || tokenizer.Size() != 261 {
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
		"model WordPiece is not supported":             func(f, model map[string]any) { model["type"] = "WordPiece" },
		"model Unigram is not supported":               func(f, model map[string]any) { model["type"], model["vocab"] = "Unigram", []any{[]any{"<unk>", 0.0}} },
		"dropout is 0.1":                               func(f, model map[string]any) { model["dropout"] = 0.1 },
		"continuing_subword_prefix":                    func(f, model map[string]any) { model["continuing_subword_prefix"] = "##" },
		"end_of_word_suffix":                           func(f, model map[string]any) { model["end_of_word_suffix"] = "</w>" },
		`"▁a" has a character that stands for no byte`: func(f, model map[string]any) { model["vocab"].(map[string]int)["▁a"] = 259 },
		"number 4000000000":                            func(f, model map[string]any) { model["vocab"].(map[string]int)["aa"] = 4_000_000_000 },
		`byte 0x61 nor unk_token, "<?>"`: func(f, model map[string]any) {
			delete(model["vocab"].(map[string]int), "a")
			model["merges"], model["unk_token"], f["added_tokens"] = []any{}, "<?>", []any{}
		},
		`"a" and "aa" have the same id, 97`: func(f, model map[string]any) { model["vocab"].(map[string]int)["aa"] = 97 },
		`"x", "y" or their concatenation`:   func(f, model map[string]any) { model["merges"] = []string{"x y"} },
		"normalizer NFKC":                   func(f, model map[string]any) { f["normalizer"] = map[string]any{"type": "NFKC"} },
		"post_processor Strange":            func(f, model map[string]any) { f["post_processor"] = map[string]any{"type": "Strange"} },
		"pre_tokenizer Metaspace":           pre(map[string]any{"type": "Metaspace"}),
		"pre_tokenizer Digits":              pre(map[string]any{"type": "Digits"}, byteLevel),
		`expressions ["\\w+"], which`:       pre(split(`\w+`, "Isolated"), byteLevel),
		"out.add(tokenizer.encode(text)":    pre(split(`\w+`, "Isolated"), byteLevel),
		`behavior "MergedWithNext"`:         pre(split(qwen2.patterns[0], "MergedWithNext"), byteLevel),
		"add_prefix_space":                  pre(map[string]any{"type": "ByteLevel", "add_prefix_space": true}),
		`\\s+" "'s|'t|'re|`:                 pre(split(qwen2.patterns[0], "Isolated"), map[string]any{"type": "ByteLevel"}),
		"Split is not supported there":      pre(split(qwen2.patterns[0], "Isolated")),
		"pre_tokenizer has no ByteLevel":    func(f, model map[string]any) { f["pre_tokenizer"] = nil },
		"model.byte_fallback is true":       func(f, model map[string]any) { model["byte_fallback"] = true },
		`"<mask>" has the id 260, but tokenizers gives it 259`: func(f, model map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 260, "content": "<mask>"}}
		},
		`"<b>" has the id 260, but tokenizers gives it 259`: func(f, model map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 260, "content": "<b>"}, map[string]any{"id": 259, "content": "<a>"}}
		},
		`"ab" has the id 259, but tokenizers gives it 256`: func(f, model map[string]any) {
			f["added_tokens"] = []any{map[string]any{"id": 259, "content": "ab"}}
		},
		"not a tokenizer.json of Hugging Face":    func(f, model map[string]any) { f["model"] = 5 },
		"because it has no model: give the token": func(f, model map[string]any) { delete(f, "model") },
	} {
		wantOpenError(t, writeSmallTokenizer(t, edit), want)
	}
	pointer := filepath.Join(t.TempDir(), "tokenizer.json")
	testfiles.NoError(t, os.WriteFile(pointer, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"), 0o600))
	dir := t.TempDir()
	testfiles.Write(t, map[string]string{dir + "/llama3.model": "IQ== 0\nIg== 1\n", dir + "/merges.txt": "#version: 0.2\n"})
	for path, want := range map[string]string{"/nowhere/tokenizer.json": "no such file or directory: use gpt2, cl100k, o200k or the path of a tokenizer.json or tekken.json; hf download",
		pointer: "is a pointer of Git LFS, not the file itself", dir: "is a directory: give the path of the tokenizer.json",
		dir + "/llama3.model":                                   "has the tokens of a tiktoken encoding, but not its expression: give the tokenizer.json",
		dir + "/merges.txt":                                     "invalid character '#' looking for beginning of value: give the tokenizer.json",
		writeSentencePieceModel(t):                              "sentencepiece.SentencePieceProcessor(",
		writeSmallTekken(t, `\w+`, 258, "</s>", 2):              `out.add(tokenizer.encode(text, bos=False, eos=False))`,
		writeSmallTekken(t, tekken.patterns[0], 300, "</s>", 2): "default_vocab_size is 300",
		writeSmallTekken(t, tekken.patterns[0], 258, "</s>", 3): `"</s>" has the rank 3`} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func wantOpenError(t *testing.T, path, want string) {
	t.Helper()
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), path) {
		t.Errorf("got %v, want %s: … %s …", err, path, want)
	}
}

// The flags of special tokens matter only if special tokens are encoded. The flags of other added
// tokens always matter.
func TestFlags(t *testing.T) {
	for _, test := range []struct {
		flags, text     string
		ordinary, named string // of a special token: tokens without it and with it
	}{
		{"lstrip rstrip", "a  <x> \n b", "a  <x> \n b", "aXb"},
		{"lstrip", "a  <x> b", "a  <x> b", "aX b"},
		{"rstrip", "a  <x>\u00a0\n<x>", "a  <x>\u00a0\n<x>", "a  XX"},
		{"single_word", "a<x> é<x> <x>_ <x>. \u0301<x>(<x>)", "a<x> é<x> <x>_ <x>. \u0301<x>(<x>)", "a<x> é<x> <x>_ X. \u0301<x>(X)"},
		{"lstrip rstrip", " <x> <x> ", " <x> <x> ", "XX"},
	} {
		for _, special := range []bool{true, false} {
			tokenizer, err := Open(writeSmallTokenizer(t, func(f, model map[string]any) {
				token := map[string]any{"id": 259, "content": "<x>", "special": special}
				for flag := range strings.FieldsSeq(test.flags) {
					token[flag] = true
				}
				f["added_tokens"], model["merges"] = []any{token}, []any{}
			}))
			testfiles.NoError(t, err)
			want := map[*Tokenizer]string{tokenizer: test.named, tokenizer.WithSpecial(): test.named}
			if special {
				want[tokenizer] = test.ordinary
			}
			for tokenizer, want := range want {
				var got []byte
				for _, token := range tokenizer.NewEncoder(NewCache()).Append(nil, []byte(test.text)) {
					if got = append(got, byte(token)); token == 259 {
						got[len(got)-1] = 'X'
					}
				}
				if string(got) != want {
					t.Errorf("%s, special %v: %q is %q, want %q", test.flags, special, test.text, got, want)
				}
			}
		}
	}
}

// Tokens that are found in normalized text are found only between the others.
func TestNormalizedTokens(t *testing.T) {
	tokenizer, err := Open(writeSmallTokenizer(t, func(f, model map[string]any) {
		f["added_tokens"] = []any{map[string]any{"id": 259, "content": "xy", "normalized": true}, map[string]any{"id": 260, "content": "yz"}}
	}))
	testfiles.NoError(t, err)
	if got := tokenizer.NewEncoder(NewCache()).Append(nil, []byte("xyz xy")); !slices.Equal(got, []uint32{'x', 260, ' ', 259}) {
		t.Errorf("%d", got)
	}
}

// A byte that the vocabulary lacks is dropped, so that its neighbors may merge, or encoded as the
// unknown token. Either is counted.
func TestLackingBytes(t *testing.T) {
	const text = "a\x01b\x01\x01\xc3\xa9b"
	for _, test := range []struct {
		name string
		edit func(model map[string]any)
		want []uint32
	}{
		{"dropped", func(model map[string]any) {}, []uint32{256, 0xa9, 'b'}},
		{"unknown", func(model map[string]any) { model["unk_token"] = "?" }, []uint32{'a', '?', 'b', '?', '?', '?', 0xa9, 'b'}},
		{"fused", func(model map[string]any) { model["unk_token"], model["fuse_unk"] = "?", true }, []uint32{'a', '?', 'b', '?', 0xa9, 'b'}},
	} {
		for _, long := range []int{1, 100} {
			tokenizer, err := Open(writeSmallTokenizer(t, func(f, model map[string]any) {
				vocab := model["vocab"].(map[string]int)
				delete(vocab, "ā") // stands for \x01
				delete(vocab, "Ã")
				f["added_tokens"] = []any{}
				f["pre_tokenizer"] = json.RawMessage(`{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "` +
					` ?[^(\\s|[.,!?…。，、।۔،])]+"}, "behavior": "Isolated"}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}`)
				test.edit(model)
			}))
			testfiles.NoError(t, err)
			encoder := tokenizer.NewEncoder(NewCache())
			for range 2 { // the second time, pieces are cached
				got := encoder.Append(nil, []byte(strings.Repeat(text, long)))
				if want := slices.Repeat(test.want, long); !slices.Equal(got, want) {
					t.Errorf("%s: %.100s, want %.100s", test.name, fmt.Sprint(got), fmt.Sprint(want))
				}
				counts := map[byte]int64{}
				encoder.TakeLacking(func(b byte, n int64) { counts[b] += n })
				if counts[1] != int64(3*long) || counts[0xc3] != int64(long) || len(counts) != 2 {
					t.Errorf("%s: counted %v", test.name, counts)
				}
			}
		}
	}
}

// Only a tokenizer.json of Mistral with the expression of Llama 3 is wrong.
func TestIsWrongMistral(t *testing.T) {
	for _, test := range []struct {
		e       expression
		size    int
		special string
		want    bool
	}{
		{llama3, 131_072, "[INST]", true},
		{tekken, 131_072, "[INST]", false},
		{llama3, 128_256, "<|eot_id|>", false},
		{llama3, 131_072, "<|eot_id|>", false},
		{llama3, 128_257, "[INST]", false},
	} {
		tokenizer := Tokenizer{expression: test.e, tokens: make([]string, test.size), special: map[string]uint32{test.special: 3}}
		if got := tokenizer.IsWrongMistral(); got != test.want {
			t.Errorf("%d tokens, %s, %s: %v", test.size, test.special, test.e.patterns[0], got)
		}
	}
}

// writeSentencePieceModel writes the beginning of a model of SentencePiece, whose first piece is
// <unk> with the score 0.
func writeSentencePieceModel(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokenizer.v3")
	testfiles.NoError(t, os.WriteFile(path, []byte("\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02"), 0o644))
	return path
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
