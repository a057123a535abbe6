package bpe

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A sentencePiece has what a vocabulary in the style of SentencePiece adds to merges. Merging
// begins with the characters that are tokens, and with the bytes of all others. The vocabulary
// writes a space as ▁, the mark; here, a space stands for both.
//
// The library merges a whole text at once. Since no merge joins most pairs of characters, the text
// between two such pairs is a piece.
type sentencePiece struct {
	chars map[rune]uint32
	joins charPairs // characters that a merge joins
	// replaces is true if spaces are replaced by the mark before normalized tokens are found.
	replaces bool
	splits   bool // whether each space begins a piece
	prefix   prefixRule
}

// A prefixRule says where a text gets an additional space.
type prefixRule int

const (
	noPrefix       prefixRule = iota
	prefixText                // at its beginning, unless it begins with a space
	prefixParts               // also after each added token
	prefixAllParts            // even before a space, but not after normalized tokens
)

const spaceMark = "▁"

// charPairs is a set of pairs of characters. It may report a few pairs that are not in it, because
// other characters are hashed.
type charPairs struct {
	ascii  [utf8.RuneSelf][2]uint64
	hashes [1 << (pairBits - 6)]uint64
}

const pairBits = 20

func hashPair(a, b rune) uint64 { return hashKey(uint64(a)<<32|uint64(b)) >> (64 - pairBits) }

func (p *charPairs) add(a, b rune) {
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		p.ascii[a][b/64] |= 1 << (b % 64)
	}
	h := hashPair(a, b)
	p.hashes[h/64] |= 1 << (h % 64)
}

func (p *charPairs) has(a, b rune) bool {
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		return p.ascii[a][b/64]>>(b%64)&1 != 0
	}
	h := hashPair(a, b)
	return p.hashes[h/64]>>(h%64)&1 != 0
}

// next returns the end of the piece at text[i].
func (p *charPairs) next(text []byte, i int) int {
	before, n := utf8.DecodeRune(text[i:])
	for i += n; i < len(text); i += n {
		var after rune
		if after, n = rune(text[i]), 1; after >= utf8.RuneSelf {
			after, n = utf8.DecodeRune(text[i:])
		}
		if !p.has(before, after) {
			break
		}
		before = after
	}
	return i
}

// loadPieces reads a vocabulary in the style of SentencePiece.
func (f *tokenizerFile) loadPieces(t *Tokenizer) error {
	if f.Model.IgnoreMerges {
		return errors.New("model.ignore_merges is true, which is not supported with byte_fallback")
	}
	p := t.pieces
	p.chars = map[rune]uint32{}
	for b := range t.byteTokens {
		t.byteTokens[b] = noToken
	}
	for text, token := range f.Model.Vocab {
		if err := t.reserve(token, text); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
		t.tokens[token] = t.decoded(text)
		if b, ok := byteOfPiece(text); ok {
			t.byteTokens[b] = token
		} else if r, n := utf8.DecodeRuneInString(t.tokens[token]); n > 0 && n == len(t.tokens[token]) && text != " " {
			p.chars[r] = token // of ▁, not of a space, which no text has after the replacement
		}
	}
	if _, ok := p.chars[' ']; !ok {
		return fmt.Errorf("model.vocab has no token %q: it must have one for spaces", spaceMark)
	}
	for b := range 0xf5 {
		_, isChar := p.chars[rune(b)]
		if t.byteTokens[b] == noToken && !(b < utf8.RuneSelf && isChar) && b != 0xc0 && b != 0xc1 {
			return fmt.Errorf("model.vocab has no token %q: with byte_fallback, it must have one for each byte", fmt.Sprintf("<0x%02X>", b))
		}
	}
	for _, m := range f.Model.Merges {
		for _, part := range m {
			if _, ok := byteOfPiece(part); ok || part == "" {
				return fmt.Errorf("model.merges: %q and %q, one of which is a byte, are not supported", m[0], m[1])
			}
		}
		before, _ := utf8.DecodeLastRuneInString(strings.ReplaceAll(m[0], spaceMark, " "))
		after, _ := utf8.DecodeRuneInString(strings.ReplaceAll(m[1], spaceMark, " "))
		if !(p.splits && after == ' ') {
			p.joins.add(before, after)
		}
	}
	return nil
}

// byteOfPiece returns the byte for which a token such as <0x0A> stands.
func byteOfPiece(text string) (byte, bool) {
	var b byte
	if len(text) != len("<0x0A>") {
		return 0, false
	}
	_, err := fmt.Sscanf(text, "<0x%02X>", &b)
	return b, err == nil && text == fmt.Sprintf("<0x%02X>", b)
}

// applyPieceStages is applyStages for vocabularies in the style of SentencePiece.
func (f *tokenizerFile) applyPieceStages(t *Tokenizer) error {
	p := &sentencePiece{}
	for _, s := range f.Normalizer.steps() {
		switch {
		case s.Type == "Prepend" && s.Prepend == spaceMark && p.prefix == noPrefix:
			p.prefix = prefixAllParts
		case s.Type == "Replace" && s.Pattern.String == " " && s.Content == spaceMark:
			p.replaces = true
		default:
			return fmt.Errorf("normalizer %s is not supported there, only Prepend of %q and Replace of a space by it", s.Type, spaceMark)
		}
	}
	steps := f.PreTokenizer.steps()
	switch {
	case p.replaces && len(steps) == 0:
	// After the replacement, no space is left at which to split.
	case p.replaces && len(steps) == 1 && steps[0].Type == "Split" && steps[0].Pattern.String == " " && !steps[0].Invert:
	case f.Normalizer.steps() == nil && len(steps) == 1 && steps[0].Type == "Metaspace" && steps[0].Replacement == spaceMark:
		s := steps[0]
		p.splits = s.Split == nil || *s.Split
		switch {
		case s.Scheme == "never" || s.AddPrefixSpace != nil && !*s.AddPrefixSpace:
		case s.Scheme == "first":
			p.prefix = prefixText
		case s.Scheme == "always", s.Scheme == "":
			p.prefix = prefixParts
		default:
			return fmt.Errorf("pre_tokenizer Metaspace has the prepend_scheme %q, which is not supported", s.Scheme)
		}
	default:
		return fmt.Errorf("model.byte_fallback is true, but the normalizer and pre_tokenizer are not those of Llama 2, Mistral or "+
			"Gemma, which replace each space by %q", spaceMark)
	}
	t.pieces = p
	t.expression = expression{next: p.joins.next}
	return nil
}

// normalized returns the text in which normalized added tokens are found, except for a space in
// front.
func (t *Tokenizer) normalized(text []byte) []byte {
	switch {
	case t.normalize != nil:
		return t.normalize(text)
	case t.pieces != nil && t.pieces.replaces:
		return marksToSpaces(text)
	}
	return text
}

func (t *Tokenizer) prefix() prefixRule {
	if t.pieces == nil {
		return noPrefix
	}
	return t.pieces.prefix
}

// replaced returns the text to merge of a part of a text that no added tokens divide. begins says
// whether the whole text is the beginning of a document, and atStart whether the part is at its
// beginning.
func (e *Encoder) replaced(text []byte, begins, atStart bool) []byte {
	p := e.tokenizer.pieces
	if p == nil || p.replaces {
		return text
	}
	text = marksToSpaces(text)
	if text[0] != ' ' && (p.prefix == prefixText && begins && atStart || p.prefix == prefixParts && (begins || !atStart)) {
		return e.withSpace(text)
	}
	return text
}

// withSpace returns the text, unless it is empty, with a space before it. The next call overwrites
// the result.
func (e *Encoder) withSpace(text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	e.spaced = append(append(e.spaced[:0], ' '), text...)
	return e.spaced
}

func marksToSpaces(text []byte) []byte {
	if !bytes.Contains(text, []byte(spaceMark)) {
		return text
	}
	return bytes.ReplaceAll(text, []byte(spaceMark), []byte(" "))
}

// adapt makes sets of added tokens fit how a text is normalized. p may be nil.
func (p *sentencePiece) adapt(sets [2]*addedSet) {
	for i, a := range sets {
		if p == nil || a == nil {
			continue
		}
		a.blankIsMark = i == 1 && p.replaces
		if p.prefix < prefixParts {
			continue
		}
		for text, token := range a.tokens {
			for before := range 256 {
				if before := byte(before); !token.special && (before == text[len(text)-1] || token.rstrip && mayEndSpace(before)) {
					a.joins.addAll(before) // what follows the token gets a space
				}
			}
		}
	}
}

// appendChars appends the tokens with which merging begins.
func (p *sentencePiece) appendChars(tokens []uint32, piece []byte, byteTokens *[256]uint32) []uint32 {
	for i := 0; i < len(piece); {
		r, n := utf8.DecodeRune(piece[i:])
		if token, ok := p.chars[r]; ok && !(r == utf8.RuneError && n == 1) {
			tokens = append(tokens, token)
		} else {
			for _, b := range piece[i : i+n] {
				tokens = append(tokens, byteTokens[b])
			}
		}
		i += n
	}
	return tokens
}

// Cut returns the last position in a text before and after which the tokens do not depend on each
// other, or 0. The text after it must be encoded with [Encoder.AppendRest]. ok is false for
// byte-level vocabularies.
func (t *Tokenizer) Cut(text []byte) (position int, ok bool) {
	if t.pieces == nil {
		return 0, false
	}
	after, n := utf8.DecodeLastRune(text)
	for i := len(text) - n; i > 0; i -= n {
		var before rune
		before, n = utf8.DecodeLastRune(text[:i])
		a, b := before, after
		if string(a) == spaceMark {
			a = ' '
		}
		if string(b) == spaceMark {
			b = ' '
		}
		if before != utf8.RuneError && after != utf8.RuneError && !t.pieces.joins.has(a, b) &&
			!t.addedJoin(text[i-1], text[i]) && !t.addedJoin(lastByte(a), firstByte(b)) {
			return i, true
		}
		after = before
	}
	return 0, true
}

func firstByte(r rune) byte { return string(r)[0] }

func lastByte(r rune) byte { return utf8.AppendRune(nil, r)[utf8.RuneLen(r)-1] }

// isSentencePieceModel reports whether a file that is not JSON is a model of SentencePiece. As a
// protocol buffer, it begins with the first piece, whose number looks like a newline.
func isSentencePieceModel(raw []byte) bool {
	return len(raw) > 2 && raw[0] == '\n' && raw[2] == '\n' && (!utf8.Valid(raw) || slices.Contains(raw, 0))
}
