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
// In vocabularies in the style of SentencePiece, such as Llama 2's, merging begins with characters
// instead of bytes (sentencepiece.go).
//
// A byte that is not part of valid UTF-8 counts as a symbol. Decoding restores the text, unless the
// tokenizer normalizes it, as Qwen's do (to NFC), or the vocabulary lacks some of its bytes.
package bpe

import (
	"slices"
	"strings"
	"sync/atomic"
)

// A Tokenizer is a vocabulary with the rules for splitting text. It is immutable and safe for
// concurrent use.
type Tokenizer struct {
	name       string
	expression                          // how text is split
	normalize  func(text []byte) []byte // nil if text is not normalized
	tokens     []string                 // empty for unused numbers
	byteTokens [256]uint32              // noToken for bytes that the vocabulary lacks
	pieces     *sentencePiece           // nil if merging begins with bytes
	// unknown stands for bytes that the vocabulary lacks; noToken if they are dropped. If
	// fuseUnknown is true, it stands for all such bytes in a row.
	unknown     uint32
	fuseUnknown bool
	// wholePieces has the pieces that are one token whatever the merges say.
	wholePieces map[string]uint32
	merges      *merges
	// byteMerges has the merges of any two bytes, which are looked up most; nil if merging does not
	// begin with one token for each byte.
	byteMerges    *[1 << 16]uint64
	special       map[string]uint32
	endOfTextName string // name of the special token between documents, or empty
	added         []addedToken
	// addedSets has the added tokens to find: [0] in the original text, [1] in normalized text; nil
	// if all of them are special.
	addedSets [2]*addedSet
}

// finish sets the fields that depend on the tokens, the merges and the added tokens.
func (t *Tokenizer) finish(pairs []pair, added []addedToken) {
	fillClasses()
	t.merges, t.unknown = newMerges(pairs), noToken
	if t.pieces == nil {
		t.setByteTokens()
	}
	t.special, t.added = map[string]uint32{}, added
	for _, token := range added {
		for uint32(len(t.tokens)) <= token.token {
			t.tokens = append(t.tokens, "")
		}
		if token.special {
			t.tokens[token.token], t.special[token.content] = token.content, token.token
		} else {
			t.tokens[token.token] = t.decoded(token.content)
		}
	}
	t.addedSets = t.newAddedSets(false)
	i := slices.IndexFunc(endNames, func(name string) bool { _, ok := t.special[name]; return ok })
	if i >= 0 {
		t.endOfTextName = endNames[i]
	}
}

// decoded returns the bytes for which a token stands that is written as text in tokenizer.json.
func (t *Tokenizer) decoded(text string) string {
	if t.pieces != nil {
		if b, ok := byteOfPiece(text); ok {
			return string([]byte{b})
		}
		return strings.ReplaceAll(text, spaceMark, " ")
	}
	if decoded, ok := bytesOfAlphabet(text); ok {
		return decoded
	}
	return text
}

// setByteTokens sets byteTokens and, if the vocabulary has all bytes, byteMerges.
func (t *Tokenizer) setByteTokens() {
	for b := range t.byteTokens {
		t.byteTokens[b] = noToken
	}
	for token, text := range t.tokens {
		if len(text) == 1 {
			t.byteTokens[text[0]] = uint32(token)
		}
	}
	if slices.Contains(t.byteTokens[:], noToken) {
		return
	}
	t.byteMerges = new([1 << 16]uint64)
	for i := range t.byteMerges {
		t.byteMerges[i] = t.merges.find(t.byteTokens[i>>8], t.byteTokens[i&0xff])
	}
}

// newAddedSets returns the sets of added tokens, in which special tokens are found if special is
// true.
func (t *Tokenizer) newAddedSets(special bool) (sets [2]*addedSet) {
	found := [2]map[string]addedToken{{}, {}}
	for _, token := range t.added {
		text, i := token.content, 0
		if token.normalized {
			text, i = string(t.normalized([]byte(text))), 1
			if t.prefix() == prefixAllParts {
				text = " " + text
			}
		}
		token.special = token.special && !special
		found[i][text] = token
	}
	for i := range sets {
		sets[i] = newAddedSet(found[i])
	}
	if t.normalize != nil {
		sets[1].allowNormalization()
	}
	if t.pieces != nil {
		t.pieces.adapt(sets)
	}
	return sets
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
	with.addedSets = t.newAddedSets(true)
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
	spaced    []byte // result of withSpace
	lacking   [256]int64
}

// TakeLacking calls visit with each byte that the vocabulary lacks and the number of times that it
// occurred since the last call. Such bytes were dropped, or encoded as [Tokenizer.Unknown].
func (e *Encoder) TakeLacking(visit func(b byte, n int64)) {
	if e.tokenizer.lacksBytes() {
		for b, n := range e.lacking {
			if n > 0 {
				visit(byte(b), n)
			}
		}
		clear(e.lacking[:])
	}
}

// lacksBytes reports whether the vocabulary lacks some byte.
func (t *Tokenizer) lacksBytes() bool { return t.byteMerges == nil && t.pieces == nil }

// Unknown returns the name of the token that stands for bytes that the vocabulary lacks, or "".
func (t *Tokenizer) Unknown() string {
	if t.unknown == noToken {
		return ""
	}
	return t.tokens[t.unknown]
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
	return e.appendText(tokens, text, true)
}

// AppendRest appends the tokens of the rest of a text, from a position returned by [Tokenizer.Cut].
func (e *Encoder) AppendRest(tokens []uint32, text []byte) []uint32 {
	return e.appendText(tokens, text, false)
}

func (e *Encoder) appendText(tokens []uint32, text []byte, begins bool) []uint32 {
	t, prefix := e.tokenizer, e.tokenizer.prefix()
	atStart := true // no text or token precedes
	for text, token := range t.addedSets[0].split(text) {
		text = t.normalized(text)
		if prefix == prefixAllParts && (begins || !atStart) {
			text = e.withSpace(text)
		}
		for text, token := range t.addedSets[1].split(text) {
			if len(text) > 0 {
				if t.lacksBytes() {
					e.countLacking(text)
				}
				tokens = e.append(tokens, e.replaced(text, begins, atStart))
				atStart = false
			}
			if token != noToken {
				tokens, atStart = append(tokens, token), false
			}
		}
		if token != noToken {
			tokens, atStart = append(tokens, token), false
		}
	}
	return tokens
}

func (e *Encoder) countLacking(text []byte) {
	for _, b := range text {
		if e.tokenizer.byteTokens[b] == noToken {
			e.lacking[b]++
		}
	}
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
