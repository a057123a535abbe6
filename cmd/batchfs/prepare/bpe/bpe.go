// Package bpe implements byte-pair encoding, the tokenization of GPT and most later language
// models. It produces exactly the same tokens as OpenAI's tiktoken, Hugging Face's tokenizers and
// Mistral's mistral_common.
//
// The algorithm is from Gage, "A New Algorithm for Data Compression" (1994), and was applied to
// tokenization by Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with
// Subword Units" (2016). A vocabulary begins with the 256 bytes. Each further token joins two
// earlier ones, the pair that was the most frequent in the training text at that time. A token is
// therefore a string of bytes, and its rank says when it was learned. To encode a text:
//
//  1. Split it into pieces, such as words with the space before them. No token spans two pieces.
//     Each vocabulary defines the pieces by a regular expression, or several in turn. split.go and
//     deepseek.go have a handwritten function for each expression, because package regexp has no
//     look-ahead, and because regular expressions take most of the time in other tokenizers. For
//     ASCII text in GPT-2, ascii.go is even faster.
//  2. Begin with one token for each byte of a piece. Join the two neighbors whose pair has the
//     lowest rank, the leftmost if there are several, and repeat until no two neighbors are a pair
//     of the vocabulary (merge.go).
//
// Most pieces are common words, so a [Cache] holds the tokens of pieces (piececache.go).
//
// A special token, such as <|endoftext|>, stands for no text. Its name in a text is encoded like
// any other text, unless the tokenizer comes from [Tokenizer.WithSpecial].
//
// All bytes can be encoded; a byte that is not part of valid UTF-8 counts as a symbol. Decoding
// restores the text, unless the tokenizer normalizes it, as Qwen's do (to NFC).
package bpe

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// A Tokenizer is a vocabulary with the rules for splitting text. It is immutable and safe for
// concurrent use.
type Tokenizer struct {
	name       string
	expression                          // how text is split
	normalize  func(text []byte) []byte // nil if text is not normalized
	tokens     []string                 // empty for unused numbers
	byteTokens [256]uint32
	// wholePieces has the pieces that are one token whatever the merges say.
	wholePieces map[string]uint32
	merges      *merges
	// byteMerges has the merges of any two bytes, which are looked up most.
	byteMerges    *[1 << 16]uint64
	special       map[string]uint32
	endOfTextName string // name of the special token between documents, or empty
	// addedByText maps the texts of added tokens to them: [0] those to find in the original text,
	// [1] in normalized text.
	addedByText [2]map[string]addedToken
	// addedSets[i] finds the tokens of addedByText[i]; nil if all of them are special.
	addedSets [2]*addedSet
}

// finish sets the fields that depend on the tokens, the merges and the added tokens.
func (t *Tokenizer) finish(pairs []pair, added [2]map[string]addedToken) error {
	fillClasses()
	var known [256]bool
	for token, text := range t.tokens {
		if len(text) == 1 {
			t.byteTokens[text[0]], known[text[0]] = uint32(token), true
		}
	}
	if b := slices.Index(known[:], false); b >= 0 {
		return fmt.Errorf("no token stands for the byte %#02x: only byte-level vocabularies can encode all text", b)
	}
	t.merges, t.byteMerges = newMerges(pairs), new([1 << 16]uint64)
	for i := range t.byteMerges {
		t.byteMerges[i] = t.merges.find(t.byteTokens[i>>8], t.byteTokens[i&0xff])
	}
	t.special, t.addedByText = map[string]uint32{}, added
	for i, texts := range added {
		t.addedSets[i] = newAddedSet(texts, i == 1)
		for text, token := range texts {
			for uint32(len(t.tokens)) <= token.token {
				t.tokens = append(t.tokens, "")
			}
			if t.tokens[token.token] = text; token.special {
				t.special[text] = token.token
			}
		}
	}
	i := slices.IndexFunc(endNames, func(name string) bool { _, ok := t.special[name]; return ok })
	if i >= 0 {
		t.endOfTextName = endNames[i]
	}
	return nil
}

// endNames has names of the special token between documents, in order of preference.
var endNames = []string{endOfText, "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>"}

// Name returns the name or path given to [Open].
func (t *Tokenizer) Name() string { return t.name }

// Size returns the size of the vocabulary. All tokens are below it.
func (t *Tokenizer) Size() int64 { return int64(len(t.tokens)) }

// EndOfText returns the special token between documents, if the vocabulary has one.
func (t *Tokenizer) EndOfText() (uint32, bool) {
	token, ok := t.special[t.endOfTextName]
	return token, ok
}

// WithSpecial returns a tokenizer that encodes names of special tokens as these tokens, as chat
// templates require. It matches encode(text, allowed_special="all") of tiktoken, and the default of
// tokenizers.
func (t *Tokenizer) WithSpecial() *Tokenizer {
	with := *t
	for i, tokens := range t.addedByText {
		found := map[string]addedToken{}
		for text, token := range tokens {
			found[text] = addedToken{token: token.token}
		}
		with.addedSets[i] = newAddedSet(found, i == 1)
	}
	return &with
}

// Special returns the special tokens by name.
func (t *Tokenizer) Special() map[string]uint32 { return t.special }

// Bytes returns the bytes of a token, the name of a special token, or nil. The bytes need not be
// valid UTF-8, because a character may span several tokens.
func (t *Tokenizer) Bytes(token uint32) []byte {
	if int64(token) >= t.Size() {
		return nil
	}
	return []byte(t.tokens[token])
}

// An Encoder encodes texts. It belongs to one goroutine.
type Encoder struct {
	tokenizer *Tokenizer
	cache     *Cache
	ends      [256]int // ends of pieces
	lookups   [256]lookup
	read      uint64 // result of startLookups
	merge     merger
}

// NewEncoder returns an encoder that shares a cache with other encoders of t.
func (t *Tokenizer) NewEncoder(cache *Cache) *Encoder { return &Encoder{tokenizer: t, cache: cache} }

// Append appends the tokens of a text. Names of special tokens are ordinary text. The result equals
// that of encode_ordinary(text) in tiktoken, and of encode(text, add_special_tokens=False) in
// tokenizers with encode_special_tokens set.
//
// It needs memory for the tokens, and 40 times the length of the longest piece, which must be below
// 2 GiB.
func (e *Encoder) Append(tokens []uint32, text []byte) []uint32 {
	for text, token := range e.tokenizer.addedSets[0].split(text) {
		if e.tokenizer.normalize != nil {
			text = e.tokenizer.normalize(text)
		}
		for text, token := range e.tokenizer.addedSets[1].split(text) {
			if tokens = e.append(tokens, text); token != noToken {
				tokens = append(tokens, token)
			}
		}
		if token != noToken {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// append looks up as many as 256 pieces before it appends the tokens of the first, so that lookups
// overlap; see pieceTable.startLookups.
func (e *Encoder) append(tokens []uint32, text []byte) []uint32 {
	table := e.cache.table.Load()
	var found [maxFinders]span
	for i := 0; i < len(text); {
		ends := e.ends[:e.tokenizer.pieceEnds(text, i, e.ends[:], &found)]
		e.read = table.startLookups(e.lookups[:len(ends)], text, i, ends)
		tokens = slices.Grow(tokens, inlineTokens*len(ends))
		for j, end := range ends {
			l := &e.lookups[j]
			entry := table.find(l)
			high := atomic.LoadUint64(&entry.keyHigh)
			if (atomic.LoadUint64(&entry.keyLow)^l.keyLow)|(high^l.keyHigh)<<4 == 0 && high>>60 <= inlineTokens {
				n := len(tokens)
				copy(tokens[n:n+inlineTokens], entry.tokens[:])
				tokens = tokens[:n+int(high>>60)]
			} else {
				tokens = slices.Grow(e.appendOther(tokens, text[i:end]), inlineTokens*(len(ends)-j))
			}
			i = end
		}
	}
	return tokens
}

// appendOther appends the tokens of a piece that no entry of the table has. It takes them from the
// overflow, or computes and caches them.
func (e *Encoder) appendOther(tokens []uint32, piece []byte) []uint32 {
	if p := e.cache.overflowFor(piece).Load(); p != nil && p.text == string(piece) {
		return append(tokens, p.tokens...)
	}
	before := len(tokens)
	tokens = e.merge.append(tokens, e.tokenizer, piece)
	e.cache.add(piece, tokens[before:])
	return tokens
}
