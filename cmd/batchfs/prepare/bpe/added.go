package bpe

import (
	"cmp"
	"iter"
	"slices"
	"unicode"
	"unicode/utf8"
)

// An addedToken is a token that is found in a text before the rest is split.
type addedToken struct {
	token   uint32
	content string
	special bool
	// normalized tokens are found in the normalized text between the other tokens.
	normalized bool
	singleWord bool // whether the token is found only between characters that are not in words
	// lstrip and rstrip say whether white space before and after the token belongs to it.
	lstrip, rstrip bool
}

// An addedSet finds added tokens in a text. It also finds names of special tokens, so that no other
// token is found inside them, but leaves those names to be encoded as ordinary text. A nil
// *addedSet is empty.
type addedSet struct {
	tokens     map[string]addedToken // keyed by text
	firstBytes [256]bool
	lengths    []int // lengths of texts in bytes, longest first

	// joins has the pairs of bytes between which a text must not be cut, because they may be part
	// of one token, or because one side decides how much white space belongs to a token.
	joins bytePairs
	// blankIsMark is true if a space in the text stands for the mark of SentencePiece, which is not
	// white space.
	blankIsMark bool
}

// newAddedSet returns nil if all tokens are special.
func newAddedSet(tokens map[string]addedToken) *addedSet {
	a := &addedSet{tokens: tokens}
	plain := false
	for text, token := range tokens {
		a.firstBytes[text[0]] = true
		a.lengths = append(a.lengths, len(text))
		plain = plain || !token.special
		for i := range len(text) - 1 {
			a.joins.add(text[i], text[i+1])
		}
		if !token.special {
			a.joinNeighbors(text, token)
		}
	}
	if !plain {
		return nil
	}
	slices.SortFunc(a.lengths, func(x, y int) int { return cmp.Compare(y, x) })
	a.lengths = slices.Compact(a.lengths)
	return a
}

// joinNeighbors adds the pairs that the flags of a token require to joins.
func (a *addedSet) joinNeighbors(text string, token addedToken) {
	first, last := text[0], text[len(text)-1]
	for b := range 256 {
		b := byte(b)
		if token.rstrip && mayBeginSpace(b) {
			a.joins.add(last, b)
		}
		if token.lstrip && mayEndSpace(b) {
			a.joins.add(b, first)
		}
		if token.singleWord && (b >= utf8.RuneSelf || isWord(rune(b))) {
			a.joins.add(last, b)
			a.joins.add(b, first)
		}
		for c := range 256 {
			if c := byte(c); (token.lstrip || token.rstrip) && mayEndSpace(b) && mayBeginSpace(c) {
				a.joins.add(b, c)
			}
		}
	}
}

// allowNormalization extends joins to texts that are not in NFC yet. For example, normalization
// turns the Kelvin sign into K, and e with a combining accent into é. It extends only pairs that
// end with a space or begin with a newline.
func (a *addedSet) allowNormalization() {
	if a == nil {
		return
	}
	const ascii = utf8.RuneSelf
	space, letter, composed := false, false, false
	for b := range 256 {
		after := a.joins.has('\n', byte(b))
		space = space || a.joins.has(byte(b), ' ')
		letter = letter || after && 'a' <= b|0x20 && b|0x20 <= 'z'
		composed = composed || after && b >= ascii
	}
	for b := range 256 {
		if b >= ascii && space {
			a.joins.add(byte(b), ' ')
		}
		if b >= ascii && letter || composed {
			a.joins.add('\n', byte(b))
		}
	}
}

// bytePairs is a set of pairs of bytes.
type bytePairs [256][4]uint64

func (p *bytePairs) add(before, after byte) { p[before][after/64] |= 1 << (after % 64) }

func (p *bytePairs) addAll(before byte) {
	p[before] = [4]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
}

func (p *bytePairs) has(before, after byte) bool { return p[before][after/64]>>(after%64)&1 != 0 }

// mayBeginSpace and mayEndSpace report whether white space may begin or end with a byte.
func mayBeginSpace(b byte) bool {
	return isSpace(rune(b)) && b < utf8.RuneSelf || b == 0xc2 || 0xe1 <= b && b <= 0xe3
}

func mayEndSpace(b byte) bool {
	return isSpace(rune(b)) && b < utf8.RuneSelf || 0x80 <= b && b <= 0xaf
}

// Joins reports whether one added token or piece may contain two adjacent bytes of a text, or
// whether it takes both to find the added tokens. It covers only pairs that end with a space or
// begin with a newline, between letters.
func (t *Tokenizer) Joins(before, after byte) bool {
	return t.joinsWords && after == ' ' && before >= utf8.RuneSelf || t.addedJoin(before, after)
}

// addedJoin reports whether the added tokens may be others if a text is cut between two bytes.
func (t *Tokenizer) addedJoin(before, after byte) bool {
	return slices.ContainsFunc(t.addedSets[:], func(a *addedSet) bool { return a != nil && a.joins.has(before, after) })
}

// split yields the text before each token, together with the token. At the end, it yields the rest
// and noToken. It finds the leftmost token, and the longest one at a position.
func (a *addedSet) split(text []byte) iter.Seq2[[]byte, uint32] {
	return func(yield func([]byte, uint32) bool) {
		rest := 0 // end of the last token
		for i := 0; a != nil && i < len(text); {
			found, n := a.longestPrefix(text[i:])
			if n == 0 {
				i++
				continue
			}
			start, end := i, i+n
			i = end
			if found.special || found.singleWord && (endsWithWord(text[:start]) || beginsWithWord(text[end:])) {
				continue
			}
			if found.lstrip {
				start = max(a.spaceBefore(text, start), rest)
			}
			if found.rstrip {
				end = a.spaceAfter(text, end)
			}
			// The library ignores an empty token, whose white space belongs to the one before.
			if start < end && !yield(text[rest:max(start, rest)], found.token) {
				return
			}
			rest = end
		}
		yield(text[rest:], noToken)
	}
}

// longestPrefix returns the longest token that text begins with, and its length or 0.
func (a *addedSet) longestPrefix(text []byte) (addedToken, int) {
	if a.firstBytes[text[0]] {
		longer := len(text) > 1 && a.joins.has(text[0], text[1])
		for _, n := range a.lengths {
			if n <= len(text) && (n == 1 || longer) {
				if found, ok := a.tokens[string(text[:n])]; ok {
					return found, n
				}
			}
		}
	}
	return addedToken{}, 0
}

func (a *addedSet) isSpace(r rune) bool { return isSpace(r) && !(a.blankIsMark && r == ' ') }

// spaceBefore returns the beginning of the white space that ends at i.
func (a *addedSet) spaceBefore(text []byte, i int) int {
	for i > 0 {
		r, n := utf8.DecodeLastRune(text[:i])
		if !a.isSpace(r) {
			break
		}
		i -= n
	}
	return i
}

// spaceAfter returns the end of the white space that begins at i.
func (a *addedSet) spaceAfter(text []byte, i int) int {
	for i < len(text) {
		r, n := utf8.DecodeRune(text[i:])
		if !a.isSpace(r) {
			break
		}
		i += n
	}
	return i
}

func endsWithWord(text []byte) bool {
	r, n := utf8.DecodeLastRune(text)
	return n > 0 && isWord(r)
}

func beginsWithWord(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return n > 0 && isWord(r)
}

// isWord implements \w. Package unicode does not know the latest digits.
func isWord(r rune) bool {
	return classes[r].isAnyOf(letters|mark) || classes[r] == number && !unicode.Is(unicode.N, r) ||
		unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
