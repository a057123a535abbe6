package bpe

import "fmt"

// A tekkenFile is a tekken.json, Mistral's own format. Special tokens come before the vocabulary,
// which is in order of rank.
type tekkenFile struct {
	Config struct {
		Pattern    string `json:"pattern"`
		Size       int    `json:"default_vocab_size"`
		NumSpecial int    `json:"default_num_special_tokens"`
	} `json:"config"`
	Vocab []struct {
		Bytes []byte `json:"token_bytes"`
	} `json:"vocab"`
	SpecialTokens []struct {
		Rank uint32 `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

// oldTekkenSpecial has the special tokens of files that do not list them.
var oldTekkenSpecial = []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
	"[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
	"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}

func (f *tekkenFile) newTekken(path string) (*Tokenizer, error) {
	size, numSpecial := f.Config.Size-f.Config.NumSpecial, f.Config.NumSpecial
	if size < 0 || size > len(f.Vocab) || numSpecial < 0 || numSpecial > maxTokens {
		return nil, fmt.Errorf("config: default_vocab_size is %d and default_num_special_tokens %d, but vocab has %d tokens", f.Config.Size,
			numSpecial, len(f.Vocab))
	}
	t := &Tokenizer{name: path, tokens: make([]string, numSpecial, f.Config.Size)}
	if err := t.splitBy([]string{f.Config.Pattern}); err != nil {
		return nil, fmt.Errorf("config.pattern: %w: %s", err, encodeInPython("mistral_common.tokens.tokenizers.tekken as tekken",
			"tekken.Tekkenizer.from_file", path, "vocab_size=tokenizer.n_words", "text, bos=False, eos=False)"))
	}
	for _, token := range f.Vocab[:size] {
		t.tokens = append(t.tokens, string(token.Bytes))
	}
	special := map[string]uint32{}
	for _, token := range f.SpecialTokens {
		if token.Rank >= uint32(numSpecial) {
			return nil, fmt.Errorf("special_tokens: %q has the rank %d: must be below default_num_special_tokens, %d", token.Text, token.Rank, numSpecial)
		}
		special[token.Text] = token.Rank
	}
	if f.SpecialTokens == nil {
		for rank, text := range oldTekkenSpecial {
			special[text] = uint32(rank)
		}
	}
	return t, t.finishRanked(special)
}
