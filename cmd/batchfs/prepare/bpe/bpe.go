// Package bpe turns text into tokens and back, by byte-pair encoding, exactly as OpenAI's tiktoken and Hugging Face's tokenizers do.
//
// A vocabulary is learnt from text. It begins with the 256 bytes. Each further token is two earlier ones joined: the pair that
// was the most frequent at that moment. So a token is a string of bytes, and its rank says when it was learnt. To encode:
//
//  1. Split the text into pieces, such as words with the space before them. No token crosses the border of two pieces. Each
//     vocabulary says with a regular expression where the borders are; split.go has a function written by hand for each of
//     them, because package regexp has no look-ahead, and regular expressions are where other tokenizers spend their time. For
//     GPT-2, ascii.go has a faster one for ASCII.
//  2. Begin with a token for each byte of a piece. Join the two neighbours whose pair has the lowest rank, the leftmost of
//     several, and repeat until no two neighbours are a pair of the vocabulary (merge.go).
//
// Most pieces are common words. An [Encoder] remembers the tokens of pieces (known.go), so that few are merged.
//
// A special token, such as <|endoftext|>, stands for no text. A text that says "<|endoftext|>" is encoded like any other text, unless the
// tokenizer is one of [Tokenizer.WithSpecial].
//
// All bytes can be encoded, also those that are not UTF-8: each of them counts as a symbol. Decoding gives the text back, but
// for tokenizers that normalize it (Qwen's, to NFC).
package bpe

import (
	"fmt"
	"slices"
)

// A Tokenizer is a vocabulary, and how to split text for it. It never changes, so goroutines can share it.
type Tokenizer struct {
	name       string
	expression                          // how text is split
	normalize  func(text []byte) []byte // nil: text is encoded as it is
	tokens     []string                 // the bytes of each token; "" for a number that is no token
	bytes      [256]uint32              // the token of each byte
	whole      map[string]uint32        // pieces that are one token, whatever the merges say; nil if they say the same
	merges     *merges
	byteMerges *[1 << 16]uint64 // the merge of any two bytes, or noMerge: merges would be searched for these most
	special    map[string]uint32
	end        string                   // the special token between documents, or ""
	named      [2]map[string]addedToken // tokens with a text of their own: in a text as it is, and then as it is normalized
	added      [2]*added                // those to find before text is split
}

// finish adds the tokens that text is searched for before it is split, and makes the tables.
func (t *Tokenizer) finish(pairs []pair, added [2]map[string]addedToken) error {
	fillClasses()
	var known [256]bool
	for token, text := range t.tokens {
		if len(text) == 1 {
			t.bytes[text[0]], known[text[0]] = uint32(token), true
		}
	}
	if b := slices.Index(known[:], false); b >= 0 {
		return fmt.Errorf("no token stands for the byte %#02x: only byte-level vocabularies can encode all text", b)
	}
	t.merges, t.byteMerges = newMerges(pairs), new([1 << 16]uint64)
	for i := range t.byteMerges {
		t.byteMerges[i] = t.merges.find(t.bytes[i>>8], t.bytes[i&0xff])
	}
	t.special, t.named = map[string]uint32{}, added
	for i, texts := range added {
		t.added[i] = newAdded(texts, i == 1)
		for text, token := range texts {
			for uint32(len(t.tokens)) <= token.token {
				t.tokens = append(t.tokens, "")
			}
			if t.tokens[token.token] = text; token.special {
				t.special[text] = token.token
			}
		}
	}
	return nil
}

// Name is the name that [Named] takes, or the path of the file.
func (t *Tokenizer) Name() string { return t.name }

// Size is the size of the vocabulary. All tokens are below it, special ones too.
func (t *Tokenizer) Size() int64 { return int64(len(t.tokens)) }

// EndOfText returns the special token that goes between documents, if the vocabulary has one.
func (t *Tokenizer) EndOfText() (uint32, bool) {
	token, ok := t.special[t.end]
	return token, ok
}

// WithSpecial returns the tokenizer that encodes the name of a special token in a text as that token, as chat templates need. That is tiktoken's
// encode(text, allowed_special="all"), and what tokenizers does unless encode_special_tokens is set.
func (t *Tokenizer) WithSpecial() *Tokenizer {
	with := *t
	for i, tokens := range t.named {
		found := map[string]addedToken{}
		for text, token := range tokens {
			found[text] = addedToken{token: token.token}
		}
		with.added[i] = newAdded(found, i == 1)
	}
	return &with
}

// Special returns the number of each special token, by its name.
func (t *Tokenizer) Special() map[string]uint32 { return t.special }

// Bytes returns what a token stands for. It is the name of a special token, and nothing if there is no such token. A character
// can be in several tokens, so the bytes of one token need not be UTF-8.
func (t *Tokenizer) Bytes(token uint32) []byte {
	if int64(token) >= t.Size() {
		return nil
	}
	return []byte(t.tokens[token])
}

// An Encoder encodes texts, one at a time: each goroutine needs its own. It takes 32 MiB, and about 10 MiB more for long pieces.
type Encoder struct {
	t       *Tokenizer
	known   known
	ends    [256]int // of pieces
	lookups [256]lookup
	merge   merger
}

// NewEncoder returns an encoder that has seen no text.
func (t *Tokenizer) NewEncoder() *Encoder { return &Encoder{t: t, known: newKnown()} }

// Append appends the tokens of a text. The names of special tokens are text like any other. That is tiktoken's encode_ordinary;
// of tokenizers, it is encode(text, add_special_tokens=False) with encode_special_tokens set.
//
// It needs memory for the text's tokens, and 40 times the length of the longest piece, which must be below 2 GiB.
func (e *Encoder) Append(tokens []uint32, text []byte) []uint32 {
	for text, token := range e.t.added[0].split(text) {
		if e.t.normalize != nil {
			text = e.t.normalize(text)
		}
		for text, token := range e.t.added[1].split(text) {
			if tokens = e.append(tokens, text); token != none {
				tokens = append(tokens, token)
			}
		}
		if token != none {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// append splits many pieces, then looks all of them up, and then appends their tokens.
func (e *Encoder) append(tokens []uint32, text []byte) []uint32 {
	for i := 0; i < len(text); {
		ends := e.ends[:e.t.many(text, i, e.ends[:])]
		e.known.begin(e.lookups[:len(ends)], text, i, ends)
		tokens = slices.Grow(tokens, few*len(ends))
		for j, end := range ends {
			if found := e.known.find(&e.lookups[j]); found != nil && found.high>>60 <= few {
				n := len(tokens)
				copy(tokens[n:n+few], found.tokens[:])
				tokens = tokens[:n+int(found.high>>60)]
			} else {
				tokens = slices.Grow(e.learn(tokens, text[i:end], found != nil), few*(len(ends)-j))
			}
			i = end
		}
	}
	return tokens
}

// learn appends the tokens of a piece that has no entry, or one without tokens, and remembers them.
func (e *Encoder) learn(tokens []uint32, piece []byte, met bool) []uint32 {
	if met || len(piece) > short {
		if rest, ok := e.known.rest[string(piece)]; ok {
			return append(tokens, rest...)
		}
	}
	before := len(tokens)
	tokens = e.merge.append(tokens, e.t, piece)
	e.known.add(piece, tokens[before:])
	return tokens
}
