package bpe

import (
	"cmp"
	"iter"
	"slices"
)

// added are tokens with a text of their own, which is found before the rest is split: those that were added to a vocabulary later.
// Special tokens are text, but no other token is found within their names. A nil *added is none.
type added struct {
	tokens  map[string]addedToken
	first   [256]bool // the bytes that they begin with
	lengths []int     // longest first
}

type addedToken struct {
	token   uint32
	special bool
}

func newAdded(tokens map[string]addedToken) *added {
	a := &added{tokens: tokens}
	plain := false
	for text, token := range tokens {
		a.first[text[0]] = true
		a.lengths = append(a.lengths, len(text))
		plain = plain || !token.special
	}
	if !plain {
		return nil
	}
	slices.SortFunc(a.lengths, func(x, y int) int { return cmp.Compare(y, x) })
	a.lengths = slices.Compact(a.lengths)
	return a
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
