package bpe

import (
	"cmp"
	"iter"
	"slices"
	"unicode/utf8"
)

// added are tokens with a text of their own, which is found before the rest is split: those that were added to a vocabulary later.
// Special tokens are text, but no other token is found within their names. A nil *added is none.
type added struct {
	tokens  map[string]addedToken
	first   [256]bool // the bytes that they begin with
	lengths []int     // longest first

	beforeSpace [256]bool // bytes that a space may follow within a token
	afterLine   [256]bool // bytes that may follow a newline within a token
}

type addedToken struct {
	token   uint32
	special bool
}

// newAdded needs to know whether the tokens are found in normalized text.
func newAdded(tokens map[string]addedToken, normalized bool) *added {
	a := &added{tokens: tokens}
	plain := false
	for text, token := range tokens {
		a.first[text[0]] = true
		a.lengths = append(a.lengths, len(text))
		plain = plain || !token.special
		for i := range len(text) - 1 {
			a.beforeSpace[text[i]] = a.beforeSpace[text[i]] || text[i+1] == ' '
			a.afterLine[text[i+1]] = a.afterLine[text[i+1]] || text[i] == '\n'
		}
	}
	if !plain {
		return nil
	}
	slices.SortFunc(a.lengths, func(x, y int) int { return cmp.Compare(y, x) })
	a.lengths = slices.Compact(a.lengths)
	if normalized {
		a.beforeNormalizing()
	}
	return a
}

// beforeNormalizing adds the bytes that a text may have before it is normalized: the Kelvin sign becomes a K, and an e with an
// accent after it becomes an é.
func (a *added) beforeNormalizing() {
	const ascii = utf8.RuneSelf
	space := slices.Contains(a.beforeSpace[:], true)
	composed := slices.Contains(a.afterLine[ascii:], true)
	letter := composed || slices.ContainsFunc([]byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), func(b byte) bool { return a.afterLine[b] })
	for b := range 256 {
		a.beforeSpace[b] = a.beforeSpace[b] || b >= ascii && space
		a.afterLine[b] = a.afterLine[b] || b >= ascii && letter || composed
	}
}

// Joins reports whether two neighbouring bytes of a text, a byte and a space or a newline and a byte, may lie in one added token.
func (t *Tokenizer) Joins(before, after byte) bool {
	return slices.ContainsFunc(t.added[:], func(a *added) bool {
		return a != nil && (after == ' ' && a.beforeSpace[before] || before == '\n' && a.afterLine[after])
	})
}

// split yields the text before each of the tokens, and the token; at the end the rest of the text, and none. The leftmost token
// counts, and of several there the longest.
func (a *added) split(text []byte) iter.Seq2[[]byte, uint32] {
	return func(yield func([]byte, uint32) bool) {
		for i := 0; a != nil && i < len(text); {
			found, n := a.at(text[i:])
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
		yield(text, none)
	}
}

// at returns the longest token that the text begins with, and its length, or 0.
func (a *added) at(text []byte) (addedToken, int) {
	if a.first[text[0]] {
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
