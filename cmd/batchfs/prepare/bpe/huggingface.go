package bpe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// ReadHuggingFace reads a tokenizer.json of Hugging Face with byte-level BPE, as in GPT-2, Llama 3,
// Qwen and GPT-4o. The error names the first unsupported feature.
//
// The result encodes like the tokenizers library with add_special_tokens=False: it ignores
// truncation, padding and tokens to put around a text. Added tokens that are not special are always
// found in a text.
func ReadHuggingFace(path string) (*Tokenizer, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f tokenizerFile
	err = json.Unmarshal(raw, &f)
	// Decoding fails for other models, whose vocab has a different type.
	if other := f.Model.Type != "" && f.Model.Type != "BPE"; err != nil && !other {
		return nil, fmt.Errorf("%s: not a tokenizer.json of Hugging Face: %w", path, err)
	}
	t, err := f.newTokenizer(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

type tokenizerFile struct {
	AddedTokens []struct {
		ID         uint32 `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *stage `json:"normalizer"`
	PreTokenizer  *stage `json:"pre_tokenizer"`
	PostProcessor *stage `json:"post_processor"`
	Model         struct {
		Type         string            `json:"type"` // empty in old files
		Dropout      float64           `json:"dropout"`
		Prefix       string            `json:"continuing_subword_prefix"`
		Suffix       string            `json:"end_of_word_suffix"`
		IgnoreMerges bool              `json:"ignore_merges"`
		Vocab        map[string]uint32 `json:"vocab"`
		Merges       []twoTokens       `json:"merges"`
	} `json:"model"`
}

// A stage is a step before or after the model, or a sequence of steps.
type stage struct {
	Type          string  `json:"type"`
	Normalizers   []stage `json:"normalizers"`
	PreTokenizers []stage `json:"pretokenizers"`
	Processors    []stage `json:"processors"`

	Pattern struct {
		Regex string `json:"Regex"`
	} `json:"pattern"`
	Behavior       string `json:"behavior"` // Pattern, Behavior and Invert belong to Split
	Invert         bool   `json:"invert"`
	AddPrefixSpace bool   `json:"add_prefix_space"` // this and UseRegex belong to ByteLevel
	UseRegex       *bool  `json:"use_regex"`
}

func (s *stage) steps() []stage {
	if s == nil {
		return nil
	}
	if s.Type != "Sequence" {
		return []stage{*s}
	}
	var steps []stage
	for _, inner := range slices.Concat(s.Normalizers, s.PreTokenizers, s.Processors) {
		steps = append(steps, inner.steps()...)
	}
	return steps
}

// twoTokens is a pair that JSON writes as "a b" or ["a", "b"].
type twoTokens [2]string

func (m *twoTokens) UnmarshalJSON(raw []byte) error {
	if raw[0] == '[' {
		return json.Unmarshal(raw, (*[2]string)(m))
	}
	var both string
	if err := json.Unmarshal(raw, &both); err != nil {
		return err
	}
	m[0], m[1], _ = strings.Cut(both, " ")
	return nil
}

func (f *tokenizerFile) newTokenizer(path string) (*Tokenizer, error) {
	m := &f.Model
	switch {
	case m.Type != "BPE" && (m.Type != "" || m.Merges == nil):
		return nil, fmt.Errorf("model %s is not supported, only byte-level BPE: %s", cmp.Or(m.Type, "without a type"), encodeInPython(path))
	case m.Dropout != 0:
		return nil, fmt.Errorf("model.dropout is %v, which makes tokens random: set it to null", m.Dropout)
	case m.Prefix != "" || m.Suffix != "":
		return nil, fmt.Errorf("model.continuing_subword_prefix is %q and end_of_word_suffix %q: only byte-level BPE is supported, which has none", m.Prefix, m.Suffix)
	}
	fillClasses() // needed for normalization
	t := &Tokenizer{name: path}
	if err := f.applyStages(t); err != nil {
		return nil, err
	}
	if err := f.loadVocabulary(t); err != nil {
		return nil, err
	}
	pairs := make([]pair, len(m.Merges))
	for rank, merge := range m.Merges {
		left, ok1 := m.Vocab[merge[0]]
		right, ok2 := m.Vocab[merge[1]]
		both, ok3 := m.Vocab[merge[0]+merge[1]]
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("model.merges: %q, %q or their concatenation is not a token of model.vocab", merge[0], merge[1])
		}
		pairs[rank] = pair{pairKey(left, right), uint64(rank)<<32 | uint64(both)}
	}
	added, err := f.addedTokens(t)
	if err != nil {
		return nil, err
	}
	err = t.finish(pairs, added)
	for _, end := range []string{endOfText, "<|end_of_text|>", "</s>", "<eos>"} {
		if _, ok := t.special[end]; ok {
			t.endOfTextName = end
			break
		}
	}
	return t, err
}

func (f *tokenizerFile) loadVocabulary(t *Tokenizer) error {
	alphabet := byteAlphabet()
	for text, token := range f.Model.Vocab {
		if err := t.reserve(token, text); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
		b := make([]byte, 0, len(text))
		for _, r := range text {
			value, ok := alphabet[r]
			if !ok {
				return fmt.Errorf("model.vocab: token %q has the character %q, which stands for no byte: only byte-level BPE is supported", text, r)
			}
			b = append(b, value)
		}
		t.tokens[token] = string(b)
	}
	if f.Model.IgnoreMerges {
		t.wholePieces = make(map[string]uint32, len(t.tokens))
		for token, text := range t.tokens {
			t.wholePieces[text] = uint32(token)
		}
	}
	return nil
}

// addedTokens returns the added tokens to find in the original text, and those to find in
// normalized text.
func (f *tokenizerFile) addedTokens(t *Tokenizer) (added [2]map[string]addedToken, err error) {
	added = [2]map[string]addedToken{{}, {}}
	for _, a := range f.AddedTokens {
		if err := t.reserve(a.ID, a.Content); err != nil {
			return added, fmt.Errorf("added_tokens: %w", err)
		}
		switch {
		case a.Content == "":
			return added, fmt.Errorf("added_tokens: token %d is empty", a.ID)
		case a.SingleWord, a.LStrip, a.RStrip:
			return added, fmt.Errorf("added_tokens: %q has single_word, lstrip or rstrip, which are not supported: set them to false", a.Content)
		case a.Normalized && t.normalize != nil:
			added[1][string(t.normalize([]byte(a.Content)))] = addedToken{a.ID, a.Special}
		default:
			added[0][a.Content] = addedToken{a.ID, a.Special}
		}
	}
	return added, nil
}

func (t *Tokenizer) reserve(token uint32, text string) error {
	const most = 1 << 24
	if token >= most {
		return fmt.Errorf("token %q has the number %d: must be below %d", text, token, most)
	}
	for uint32(len(t.tokens)) <= token {
		t.tokens = append(t.tokens, "")
	}
	return nil
}

func (f *tokenizerFile) applyStages(t *Tokenizer) error {
	for _, s := range f.Normalizer.steps() {
		if s.Type != "NFC" {
			return fmt.Errorf("normalizer %s is not supported, only NFC", s.Type)
		}
		t.normalize = nfc
	}
	for _, s := range f.PostProcessor.steps() {
		switch s.Type {
		// These only change offsets or add special tokens around a text, so they are ignored.
		case "ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing":
		default:
			return fmt.Errorf("post_processor %s is not supported", s.Type)
		}
	}
	bytes := false
	for _, s := range f.PreTokenizer.steps() {
		switch {
		case s.Type == "Split" && t.next == nil && !bytes:
			if !(s.Behavior == "Isolated" || s.Behavior == "Removed" && s.Invert) {
				return fmt.Errorf("pre_tokenizer Split has the behavior %q (invert: %v): must be Isolated, or Removed with invert", s.Behavior, s.Invert)
			}
			i := slices.IndexFunc(expressions, func(e expression) bool { return slices.Contains(e.patterns, s.Pattern.Regex) })
			if i < 0 {
				return fmt.Errorf("pre_tokenizer Split has the expression %q, which is not supported, only those of GPT-2, GPT-4, GPT-4o, Llama 3, Qwen, Mistral NeMo and nanochat: %s",
					s.Pattern.Regex, encodeInPython(t.name))
			}
			t.expression = expressions[i]
		case s.Type == "ByteLevel" && !bytes:
			if s.AddPrefixSpace {
				return errors.New("pre_tokenizer ByteLevel has add_prefix_space, which is not supported: set it to false, and put the space before each text")
			}
			if s.UseRegex == nil || *s.UseRegex {
				if t.next != nil {
					return errors.New("pre_tokenizer ByteLevel has use_regex after a Split: two expressions in a row are not supported")
				}
				t.expression = gpt2
			}
			bytes = true
		default:
			return fmt.Errorf("pre_tokenizer %s is not supported there, only a Split followed by a ByteLevel", s.Type)
		}
	}
	if !bytes || t.next == nil {
		return errors.New("pre_tokenizer has no Split followed by a ByteLevel: only byte-level BPE is supported")
	}
	return nil
}

// encodeInPython suggests what to do with an unsupported tokenizer.json.
func encodeInPython(path string) string {
	return fmt.Sprintf(`encode the texts in Python instead:
import batchfs, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(%q)
with batchfs.writer("data", tokenizer=tokenizer) as out:
    for text in texts:
        out.add(tokenizer.encode(text).ids)`, path)
}

// byteAlphabet returns the characters that stand for bytes in tokenizer.json. Visible characters
// stand for themselves; the others are numbered from 256.
func byteAlphabet() map[rune]byte {
	alphabet := map[rune]byte{}
	unseen := rune(256)
	for b := range rune(256) {
		if '!' <= b && b <= '~' || '¡' <= b && b <= '¬' || '®' <= b && b <= 'ÿ' {
			alphabet[b] = byte(b)
		} else {
			alphabet[unseen] = byte(b)
			unseen++
		}
	}
	return alphabet
}
