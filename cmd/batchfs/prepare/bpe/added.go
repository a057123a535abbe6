package bpe

import (
	"cmp"
	"iter"
	"slices"
	"unicode/utf8"
)

// An addedSet finds added tokens in a text before the rest is split. It also finds names of special
// tokens, so that no other token is found inside them, but leaves those names to be encoded as
// ordinary text. A nil *addedSet is empty.
type addedSet struct {
	tokens     map[string]addedToken // keyed by text
	firstBytes [256]bool
	lengths    []int // lengths of texts in bytes, longest first

	beforeSpace  [256]bool // bytes that may precede a space within a token
	afterNewline [256]bool // bytes that may follow a newline within a token
}

type addedToken struct {
	token   uint32
	special bool
}

// newAddedSet returns nil if all tokens are special. normalized says whether they are found in
// normalized text.
func newAddedSet(tokens map[string]addedToken, normalized bool) *addedSet {
	a := &addedSet{tokens: tokens}
	plain := false
	for text, token := range tokens {
		a.firstBytes[text[0]] = true
		a.lengths = append(a.lengths, len(text))
		plain = plain || !token.special
		for i := range len(text) - 1 {
			a.beforeSpace[text[i]] = a.beforeSpace[text[i]] || text[i+1] == ' '
			a.afterNewline[text[i+1]] = a.afterNewline[text[i+1]] || text[i] == '\n'
		}
	}
	if !plain {
		return nil
	}
	slices.SortFunc(a.lengths, func(x, y int) int { return cmp.Compare(y, x) })
	a.lengths = slices.Compact(a.lengths)
	if normalized {
		a.allowNormalization()
	}
	return a
}

// allowNormalization extends beforeSpace and afterNewline to texts that are not normalized yet. For
// example, normalization turns the Kelvin sign into K, and e with a combining accent into é.
func (a *addedSet) allowNormalization() {
	const ascii = utf8.RuneSelf
	space := slices.Contains(a.beforeSpace[:], true)
	composed := slices.Contains(a.afterNewline[ascii:], true)
	letter := composed || slices.ContainsFunc([]byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), func(b byte) bool { return a.afterNewline[b] })
	for b := range 256 {
		a.beforeSpace[b] = a.beforeSpace[b] || b >= ascii && space
		a.afterNewline[b] = a.afterNewline[b] || b >= ascii && letter || composed
	}
}

// Joins reports whether one added token or piece may contain two adjacent bytes of a text. It
// covers only pairs that end with a space or begin with a newline, between letters.
func (t *Tokenizer) Joins(before, after byte) bool {
	return t.joinsWords && after == ' ' && before >= utf8.RuneSelf || slices.ContainsFunc(t.addedSets[:], func(a *addedSet) bool {
		return a != nil && (after == ' ' && a.beforeSpace[before] || before == '\n' && a.afterNewline[after])
	})
}

// split yields the text before each token, together with the token. At the end, it yields the rest
// and noToken. It finds the leftmost token, and the longest one at a position.
func (a *addedSet) split(text []byte) iter.Seq2[[]byte, uint32] {
	return func(yield func([]byte, uint32) bool) {
		for i := 0; a != nil && i < len(text); {
			found, n := a.longestPrefix(text[i:])
			switch {
			case n == 0:
				i++
			case found.special:
				i += n
			default:
				if !yield(text[:i], found.token) {
					return
				}
				text, i = text[i+n:], 0
			}
		}
		yield(text, noToken)
	}
}

// longestPrefix returns the longest token that text begins with, and its length or 0.
func (a *addedSet) longestPrefix(text []byte) (addedToken, int) {
	if a.firstBytes[text[0]] {
		for _, n := range a.lengths {
			if n <= len(text) {
				if found, ok := a.tokens[string(text[:n])]; ok {
					return found, n
				}
			}
		}
	}
	return addedToken{}, 0
}
