package bpe

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// writeSmallPieces writes a tokenizer.json in the style of SentencePiece, with the tokens ▁, all
// bytes, some characters and random merges, as many as n. edit may change it.
func writeSmallPieces(t *testing.T, n int, edit func(f, model map[string]any)) string {
	t.Helper()
	vocab := map[string]int{"▁": 0, "<unk>": 1, "<s>": 2, "</s>": 3}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = 4 + b
	}
	random := rand.New(rand.NewPCG(uint64(n), 2))
	parts := []string{"▁"}
	for _, r := range "abc.\n汉é" {
		parts = append(parts, string(r))
		vocab[string(r)] = len(vocab)
	}
	var merges [][]string
	for range n {
		pair := []string{parts[random.IntN(len(parts))], parts[random.IntN(len(parts))]}
		both := pair[0] + pair[1]
		if _, ok := vocab[both]; !ok {
			vocab[both] = len(vocab)
			parts = append(parts, both)
		}
		merges = append(merges, pair)
	}
	model := map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true}
	f := map[string]any{
		"model": model,
		"normalizer": map[string]any{"type": "Sequence", "normalizers": []any{
			map[string]any{"type": "Prepend", "prepend": "▁"},
			map[string]any{"type": "Replace", "pattern": map[string]string{"String": " "}, "content": "▁"},
		}},
		"added_tokens": []any{
			map[string]any{"id": 1, "content": "<unk>", "special": true}, map[string]any{"id": 2, "content": "<s>", "special": true},
			map[string]any{"id": 3, "content": "</s>", "special": true},
		},
	}
	edit(f, model)
	raw, err := json.Marshal(f)
	testfiles.NoError(t, err)
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	testfiles.Write(t, map[string]string{path: string(raw)})
	return path
}

// The library merges a whole text at once. Cutting it into pieces gives the same tokens, and so
// does cutting it anywhere that Cut returns.
func TestPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 20 {
		tokenizer, err := Open(writeSmallPieces(t, n, func(f, model map[string]any) {}))
		testfiles.NoError(t, err)
		encoder, cuts := tokenizer.NewEncoder(NewCache()), 0
		for range 100 {
			letters, text := []rune("abc.\n汉é  ▁字\x00")[random.IntN(6):], []rune{}
			for range 1 + random.IntN(300) {
				text = append(text, letters[random.IntN(len(letters))])
			}
			raw := []byte(string(text))
			want := appendLong(nil, tokenizer, append([]byte(" "), marksToSpaces(raw)...))
			if got := encoder.Append(nil, raw); !slices.Equal(got, want) {
				t.Fatalf("%d merges: %q: %d, want %d", n, raw, got, want)
			}
			if i, _ := tokenizer.Cut(raw); i > 0 {
				cuts++
				if got := encoder.AppendRest(encoder.Append(nil, raw[:i]), raw[i:]); !slices.Equal(got, want) {
					t.Fatalf("%d merges: %q, cut at %d: %d, want %d", n, raw, i, got, want)
				}
			}
			if got := decode(tokenizer, want); string(got) != " "+string(marksToSpaces(raw)) {
				t.Fatalf("%d merges: %q: decoded %q", n, raw, got)
			}
		}
		if cuts < 30 {
			t.Errorf("%d merges: cut %d times", n, cuts)
		}
	}
}

// A text gets an additional ▁ (token 0) where the library puts one.
func TestPrefix(t *testing.T) {
	metaspace := func(scheme string, split bool) func(f map[string]any) {
		return func(f map[string]any) {
			f["normalizer"] = nil
			f["pre_tokenizer"] = map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
		}
	}
	const a, s = 260, 2
	for _, test := range []struct {
		name string
		edit func(f map[string]any)
		text string
		want []uint32
	}{
		{"Llama 2", func(f map[string]any) {}, "a a<s>a<s> a", []uint32{0, a, 0, a, s, 0, a, s, 0, 0, a}},
		{"Gemma", func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]string{"String": " "}, "content": "▁"}
			f["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]string{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}
		}, "a a<s>a<s> a", []uint32{a, 0, a, s, a, s, 0, a}},
		{"first", metaspace("first", false), "a a<s>a<s> a", []uint32{0, a, 0, a, s, a, s, 0, a}},
		{"first, after a token", metaspace("first", false), "<s>a", []uint32{s, a}},
		{"first, with a space", metaspace("first", false), " a", []uint32{0, a}},
		{"always", metaspace("always", true), "a a<s>a<s> a", []uint32{0, a, 0, a, s, 0, a, s, 0, a}},
		{"never", metaspace("never", true), "a a<s>a", []uint32{a, 0, a, s, a}},
	} {
		tokenizer, err := Open(writeSmallPieces(t, 0, func(f, model map[string]any) { test.edit(f) }))
		testfiles.NoError(t, err)
		encoder := tokenizer.WithSpecial().NewEncoder(NewCache())
		if got := encoder.Append(nil, []byte(test.text)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q: %d, want %d", test.name, test.text, got, test.want)
		}
		if got := encoder.AppendRest(nil, []byte("a")); !slices.Equal(got, []uint32{a}) {
			t.Errorf("%s: %d after a cut", test.name, got)
		}
	}
}

// Tokens stand for what the library's decoder makes of them within a text.
func TestBytesOfPieces(t *testing.T) {
	tokenizer, err := Open(writeSmallPieces(t, 0, func(f, model map[string]any) {
		f["added_tokens"] = append(f["added_tokens"].([]any), map[string]any{"id": 267, "content": "▁▁"}, map[string]any{"id": 268, "content": "a▁b", "normalized": true})
	}))
	testfiles.NoError(t, err)
	for token, want := range map[uint32]string{0: " ", 3: "</s>", 4 + '\n': "\n", 4 + 0xe9: "\xe9", 260: "a", 267: "  ", 268: "a b"} {
		if got := string(tokenizer.Bytes(token)); got != want {
			t.Errorf("token %d: %q, want %q", token, got, want)
		}
	}
}

func TestOpenRejectsPieces(t *testing.T) {
	for want, edit := range map[string]func(f, model map[string]any){
		`no token "<0x80>"`: func(f, model map[string]any) { delete(model["vocab"].(map[string]int), "<0x80>") },
		`no token "▁"`: func(f, model map[string]any) {
			delete(model["vocab"].(map[string]int), "▁")
		},
		"model.ignore_merges is true":        func(f, model map[string]any) { model["ignore_merges"] = true },
		"normalizer NFKC is not supported":   func(f, model map[string]any) { f["normalizer"] = map[string]any{"type": "NFKC"} },
		"are not those of Llama 2, Mistral":  func(f, model map[string]any) { f["normalizer"] = nil },
		`one of which is a byte, are not`:    func(f, model map[string]any) { model["merges"] = []string{"<0x41> a"} },
		`"sometimes", which is not`:          func(f, model map[string]any) { f["normalizer"], f["pre_tokenizer"] = nil, sometimes },
		"out.add(tokenizer.encode(text).ids": func(f, model map[string]any) { f["pre_tokenizer"] = sometimes },
	} {
		wantOpenError(t, writeSmallPieces(t, 0, edit), want)
	}
}

var sometimes = map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "sometimes"}
