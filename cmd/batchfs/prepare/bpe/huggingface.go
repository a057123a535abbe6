package bpe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Open returns a tokenizer of [Named], or reads a file: a tokenizer.json of Hugging Face with
// byte-level BPE, as in GPT-2, Llama 3, Qwen, DeepSeek and GPT-4o, or with BPE in the style of
// SentencePiece, as in Llama 2, Mistral and Gemma, or a tekken.json of Mistral. The error names the
// first unsupported feature.
//
// The result encodes like the tokenizers library with add_special_tokens=False: it ignores
// truncation, padding and tokens to put around a text. Added tokens that are not special are always
// found in a text.
func Open(path string) (*Tokenizer, error) {
	if _, ok := publishedTokenizers[path]; ok {
		return Named(path)
	}
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, syscall.EISDIR):
		return nil, fmt.Errorf("%s: is a directory: give the path of the tokenizer.json or tekken.json in it", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: use gpt2, cl100k, o200k or the path of a tokenizer.json or tekken.json; hf download MODEL "+
			"tokenizer.json prints that of a model of the Hugging Face Hub", err)
	case err != nil:
		return nil, err
	}
	return Parse(path, raw)
}

// Parse returns the tokenizer of a file with this path and content.
func Parse(path string, raw []byte) (*Tokenizer, error) {
	var f tokenizerFile
	err := json.Unmarshal(raw, &f)
	// Decoding fails for other models, whose vocab has a different type.
	other := f.Model.Type != "" && f.Model.Type != "BPE"
	switch {
	case bytes.HasPrefix(raw, []byte("version https://git-lfs.")):
		return nil, fmt.Errorf("%s: is a pointer of Git LFS, not the file itself: fetch that with git lfs pull", path)
	case err != nil && tiktokenRank.Match(raw):
		return nil, fmt.Errorf("%s: has the tokens of a tiktoken encoding, but not its expression: give the tokenizer.json of the same "+
			"model; cl100k_base is --by cl100k, and o200k_base is --by o200k", path)
	case err != nil && (isSentencePieceModel(raw) || filepath.Ext(path) == ".model"):
		return nil, sentencePieceModelError(path)
	case err == nil && f.Model.Type == "" && f.Model.Vocab == nil && f.Config.Pattern == "":
		return nil, fmt.Errorf("%s: not a tokenizer.json of Hugging Face, because it has no model: give the tokenizer.json of the same model", path)
	case err != nil && !other:
		return nil, fmt.Errorf("%s: not a tokenizer.json of Hugging Face: %w: give the tokenizer.json of the same model", path, err)
	}
	newTokenizer := f.newTokenizer
	if f.Config.Pattern != "" {
		newTokenizer = f.newTekken
	}
	t, err := newTokenizer(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// tiktokenRank matches the first token of a file of tiktoken, such as Llama 3's tokenizer.model.
var tiktokenRank = regexp.MustCompile(`^[A-Za-z0-9+/]+=* [0-9]+\n`)

func sentencePieceModelError(path string) error {
	return fmt.Errorf("%s: models of SentencePiece are not supported: use the tokenizer.json of the same model, or %s", path,
		encodeInPython("sentencepiece", "sentencepiece.SentencePieceProcessor", path, "tokenizer=tokenizer", "text)"))
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
		ByteFallback bool              `json:"byte_fallback"`
		UnknownToken string            `json:"unk_token"`
		FuseUnknown  bool              `json:"fuse_unk"`
	} `json:"model"`
	tekkenFile
}

// A stage is a step before or after the model, or a sequence of steps.
type stage struct {
	Type          string  `json:"type"`
	Normalizers   []stage `json:"normalizers"`
	PreTokenizers []stage `json:"pretokenizers"`
	Processors    []stage `json:"processors"`

	Pattern struct {
		Regex  string `json:"Regex"`
		String string `json:"String"`
	} `json:"pattern"` // belongs to Split and Replace
	Behavior       string `json:"behavior"` // this and Invert belong to Split
	Invert         bool   `json:"invert"`
	AddPrefixSpace *bool  `json:"add_prefix_space"`  // belongs to ByteLevel and Metaspace
	UseRegex       *bool  `json:"use_regex"`         // belongs to ByteLevel
	Individual     bool   `json:"individual_digits"` // belongs to Digits
	Prepend        string `json:"prepend"`           // belongs to Prepend
	Content        string `json:"content"`           // belongs to Replace
	Replacement    string `json:"replacement"`       // this, Scheme and Split belong to Metaspace
	Scheme         string `json:"prepend_scheme"`
	Split          *bool  `json:"split"`
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
	if m.Dropout != 0 {
		return nil, fmt.Errorf("model.dropout is %v, which makes tokens random: set it to null", m.Dropout)
	}
	fillClasses() // needed for normalization
	t := &Tokenizer{name: path}
	if err := f.applyStages(t); err != nil {
		return nil, fmt.Errorf("%w: %s", err,
			encodeInPython("tokenizers", "tokenizers.Tokenizer.from_file", path, "tokenizer=tokenizer", "text).ids"))
	}
	load := f.loadBytes
	if t.pieces != nil {
		load = f.loadPieces
	}
	if err := load(t); err != nil {
		return nil, err
	}
	if err := f.checkIDs(len(t.tokens)); err != nil {
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
	t.finish(pairs, added)
	if b := slices.Index(t.byteTokens[:], noToken); b >= 0 && t.pieces == nil && m.UnknownToken != "" {
		token, ok := m.Vocab[m.UnknownToken]
		if !ok {
			return nil, fmt.Errorf("model.vocab has neither the byte %#02x nor unk_token, %q: add one of them", b, m.UnknownToken)
		}
		t.unknown, t.fuseUnknown = token, m.FuseUnknown
	}
	return t, nil
}

// loadBytes reads a byte-level vocabulary.
func (f *tokenizerFile) loadBytes(t *Tokenizer) error {
	added := map[string]bool{}
	for _, a := range f.AddedTokens {
		added[a.Content] = true
	}
	for text, token := range f.Model.Vocab {
		if err := t.reserve(token, text); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
		decoded, ok := bytesOfAlphabet(text)
		if !ok && !added[text] {
			return fmt.Errorf("model.vocab: token %q has a character that stands for no byte: only byte-level BPE is supported without byte_fallback", text)
		}
		t.tokens[token] = decoded
	}
	if f.Model.IgnoreMerges {
		t.wholePieces = make(map[string]uint32, len(t.tokens))
		for token, text := range t.tokens {
			t.wholePieces[text] = uint32(token)
		}
	}
	return nil
}

// checkIDs returns an error if two tokens of model.vocab have the same id. All ids are below size.
func (f *tokenizerFile) checkIDs(size int) error {
	seen := make([]bool, size)
	for text, id := range f.Model.Vocab {
		if !seen[id] {
			seen[id] = true
			continue
		}
		for other, same := range f.Model.Vocab {
			if same == id && other != text {
				return fmt.Errorf("model.vocab: %q and %q have the same id, %d: use the tokenizer.json of the model as published",
					min(text, other), max(text, other), id)
			}
		}
	}
	return nil
}

// addedTokens returns the added tokens. The tokenizers library ignores their written ids: a token
// has its id in model.vocab, and the others are numbered from the size of model.vocab on.
func (f *tokenizerFile) addedTokens(t *Tokenizer) (added []addedToken, err error) {
	next := uint32(len(f.Model.Vocab))
	index := map[string]int{} // in added
	for _, a := range f.AddedTokens {
		if a.Content == "" {
			return nil, fmt.Errorf("added_tokens: token %d is empty", a.ID)
		}
		if err := t.reserve(a.ID, a.Content); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
		id, ok := f.Model.Vocab[a.Content]
		i, again := index[a.Content]
		switch {
		case again:
			id = added[i].token
		case !ok:
			id = next
			next++
		}
		if id != a.ID {
			return nil, fmt.Errorf("added_tokens: %q has the id %d, but tokenizers gives it %d, whatever the file says: "+
				"if a model was trained with %d, save the file again with tokenizers; otherwise, give the tokens ids in their order, "+
				"from the size of model.vocab, %d, on",
				a.Content, a.ID, id, id, len(f.Model.Vocab))
		}
		token := addedToken{token: id, content: a.Content, special: a.Special, normalized: a.Normalized,
			singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip}
		if again { // only special stays as it was
			token.special = token.special || added[i].special
			added[i] = token
			continue
		}
		index[a.Content] = len(added)
		added = append(added, token)
	}
	return added, nil
}

const maxTokens = 1 << 24

func (t *Tokenizer) reserve(token uint32, text string) error {
	if token >= maxTokens {
		return fmt.Errorf("token %q has the number %d: must be below %d", text, token, maxTokens)
	}
	for uint32(len(t.tokens)) <= token {
		t.tokens = append(t.tokens, "")
	}
	return nil
}

// applyStages sets how text is normalized and split. The error names what is not supported.
func (f *tokenizerFile) applyStages(t *Tokenizer) error {
	switch m := &f.Model; {
	case m.Type != "BPE" && (m.Type != "" || m.Merges == nil):
		return fmt.Errorf("model %s is not supported, only BPE", cmp.Or(m.Type, "without a type"))
	case m.Prefix != "" || m.Suffix != "":
		return fmt.Errorf("model.continuing_subword_prefix is %q and end_of_word_suffix %q, which are not supported", m.Prefix, m.Suffix)
	}
	if err := f.checkPostProcessor(); err != nil {
		return err
	}
	if f.Model.ByteFallback {
		return f.applyPieceStages(t)
	}
	for _, s := range f.Normalizer.steps() {
		if s.Type != "NFC" {
			return fmt.Errorf("normalizer %s is not supported, only NFC", s.Type)
		}
		t.normalize = nfc
	}
	steps := f.PreTokenizer.steps()
	var patterns []string
	for i, s := range steps {
		switch last := i == len(steps)-1; {
		case s.Type == "Split" && !last:
			// A single expression matches all text, so Removed with invert removes nothing.
			if !(s.Behavior == "Isolated" || s.Behavior == "Removed" && s.Invert && len(steps) == 2) {
				return fmt.Errorf("pre_tokenizer Split has the behavior %q (invert: %v), which is not supported, only Isolated", s.Behavior, s.Invert)
			}
			patterns = append(patterns, s.Pattern.Regex)
		case s.Type == "Digits" && s.Individual && !last:
			patterns = append(patterns, `\p{N}`)
		case s.Type == "ByteLevel" && last && s.AddPrefixSpace != nil && *s.AddPrefixSpace:
			return errors.New("pre_tokenizer ByteLevel has add_prefix_space, which is not supported")
		case s.Type == "ByteLevel" && last:
			if s.UseRegex == nil || *s.UseRegex {
				patterns = append(patterns, gpt2.patterns[0])
			}
			return t.splitBy(patterns)
		default:
			return fmt.Errorf("pre_tokenizer %s is not supported there, only Split and Digits (with individual_digits) before a ByteLevel", s.Type)
		}
	}
	return errors.New("pre_tokenizer has no ByteLevel, and model.byte_fallback is not true: one of them is needed to encode all text")
}

func (f *tokenizerFile) checkPostProcessor() error {
	for _, s := range f.PostProcessor.steps() {
		switch s.Type {
		// These only change offsets or add special tokens around a text, so they are ignored.
		case "ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing":
		default:
			return fmt.Errorf("post_processor %s is not supported", s.Type)
		}
	}
	return nil
}

// splitBy makes the tokenizer split text by regular expressions that are applied in turn.
func (t *Tokenizer) splitBy(patterns []string) error {
	joined := strings.Join(patterns, then)
	i := slices.IndexFunc(expressions, func(e expression) bool { return slices.Contains(e.patterns, joined) })
	if i < 0 {
		return fmt.Errorf("text is split by the expressions %q, which are not supported, only those of GPT-2, GPT-4, GPT-4o, Llama 3, "+
			"Qwen, DeepSeek, StarCoder, BLOOM, Mistral and nanochat", patterns)
	}
	t.expression = expressions[i]
	return nil
}

// IsWrongMistral reports whether the tokenizer comes from a tokenizer.json that Mistral published
// for a tekken.json, but with the expression of Llama 3.
func (t *Tokenizer) IsWrongMistral() bool {
	_, ok := t.special["[INST]"]
	return ok && t.Size() == 1<<17 && slices.Equal(t.patterns, llama3.patterns)
}

// encodeInPython suggests what to do with an unsupported tokenizer.
func encodeInPython(module, open, path, vocabulary, arguments string) string {
	return fmt.Sprintf(`encode the texts in Python instead:
import batchfs, %s
tokenizer = %s(%q)
with batchfs.writer("data", %s) as out:
    for text in texts:
        out.add(tokenizer.encode(%s)`, module, open, path, vocabulary, arguments)
}

// bytesOfAlphabet returns the bytes for which the characters of a token stand. ok is false if one
// of them stands for no byte.
func bytesOfAlphabet(text string) (decoded string, ok bool) {
	b := make([]byte, 0, len(text))
	for _, r := range text {
		value, ok := alphabet()[r]
		if !ok {
			return "", false
		}
		b = append(b, value)
	}
	return string(b), true
}

var alphabet = sync.OnceValue(byteAlphabet)

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
