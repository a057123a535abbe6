package bpe

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"slices"
)

// The vocabularies of tiktoken: each token is a byte with its length, and then its bytes, in order
// of rank. TestNamed compares their checksums with the ones that tiktoken expects.
//
//go:embed gpt2.gz cl100k.gz o200k.gz
var vocabularies embed.FS

const endOfText = "<|endoftext|>"

var publishedTokenizers = map[string]struct {
	expression expression
	special    map[string]uint32
}{
	"gpt2": {gpt2, map[string]uint32{endOfText: 50256}},
	"cl100k": {cl100k, map[string]uint32{endOfText: 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259,
		"<|fim_suffix|>": 100260, "<|endofprompt|>": 100276}},
	"o200k": {o200k, map[string]uint32{endOfText: 199999, "<|endofprompt|>": 200018}},
}

// Named returns one of OpenAI's tokenizers, which are part of the program: gpt2 (r50k_base in
// tiktoken), cl100k (GPT-4) or o200k (GPT-4o).
func Named(name string) (*Tokenizer, error) {
	p, ok := publishedTokenizers[name]
	if !ok {
		return nil, fmt.Errorf("there is no tokenizer %q: use gpt2, cl100k, o200k or the path of a tokenizer.json or tekken.json", name)
	}
	tokens, err := readVocabulary(name)
	if err != nil {
		return nil, fmt.Errorf("the vocabulary of %s: %w", name, err)
	}
	t := &Tokenizer{name: name, expression: p.expression, tokens: tokens}
	return t, t.finishRanked(p.special)
}

// finishRanked is finish for vocabularies in order of rank. They do not say which two tokens a
// token joins, so any two that make it up are a pair.
func (t *Tokenizer) finishRanked(special map[string]uint32) error {
	whole := make(map[string]uint32, len(t.tokens))
	for token, text := range t.tokens {
		whole[text] = uint32(token)
	}
	pairs := make([]pair, 0, 5*len(t.tokens))
	for token, text := range t.tokens {
		for i := 1; i < len(text); i++ {
			if left, ok := whole[text[:i]]; ok {
				if right, ok := whole[text[i:]]; ok {
					pairs = append(pairs, pair{pairKey(left, right), uint64(token)<<32 | uint64(token)})
				}
			}
		}
	}
	var added []addedToken
	for text, token := range special {
		added = append(added, addedToken{token: token, content: text, special: true})
	}
	t.finish(pairs, added)
	if b := slices.Index(t.byteTokens[:], noToken); b >= 0 {
		return fmt.Errorf("no token stands for the byte %#02x: a vocabulary in order of rank must have all bytes", b)
	}
	return nil
}

func readVocabulary(name string) ([]string, error) {
	compressed, err := vocabularies.ReadFile(name + ".gz")
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	var tokens []string
	for all := string(raw); len(all) > 0; {
		n := 1 + int(all[0])
		tokens = append(tokens, all[1:n])
		all = all[n:]
	}
	return tokens, nil
}
