package bpe

import (
	"bytes"
	"iter"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// LastPieceEnd returns the last position in a text at which a piece ends whatever follows the text,
// or 0. The text must begin a document, or follow such a position, and the text after the position
// must be encoded with [Encoder.AppendRest]. It is for byte-level vocabularies.
func (t *Tokenizer) LastPieceEnd(text []byte) (last int) {
	// The least margin is two characters, or a contraction and a character.
	c := cutter{Tokenizer: t, text: text, margin: 8}
	for _, a := range t.addedSets {
		if a != nil {
			c.margin += a.lengths[0]
		}
	}
	for original := range t.addedSets[0].split(text) {
		at := startOf(text, original)
		if bytes.Equal(t.normalized(original), original) {
			c.eachSurePieceEnd(at, original, func(p int) { last = p })
			continue
		}
		// Text that follows may still change how the last characters are normalized.
		n := lastBoundary(original)
		normalized := cutter{Tokenizer: t, text: t.normalized(original[:n]), margin: c.margin}
		position := t.positions(original[:n])
		normalized.eachSurePieceEnd(0, normalized.text, func(p int) {
			if i, ok := position(p); ok && at+i+c.margin <= len(text) && !t.addedJoin(original[i-1], original[i]) {
				last = at + i
			}
		})
	}
	return last
}

// LongestPiece returns the length of the longest piece in a text, in bytes.
func (t *Tokenizer) LongestPiece(text []byte) (longest int) {
	for original := range t.addedSets[0].split(text) {
		for part := range t.addedSets[1].split(t.normalized(original)) {
			for start, end := range t.allPieces(part) {
				longest = max(longest, end-start)
			}
		}
	}
	return longest
}

// allPieces yields the start and end of each piece of a text that no added tokens divide.
func (t *Tokenizer) allPieces(text []byte) iter.Seq2[int, int] {
	return func(yield func(start, end int) bool) {
		var found [maxFinders]span
		var ends [256]int
		for i := 0; i < len(text); {
			n := t.pieceEnds(text, i, ends[:], &found)
			for _, end := range ends[:n] {
				if !yield(i, end) {
					return
				}
				i = end
			}
		}
	}
}

// startOf returns the position at which a part of a text begins.
func startOf(text, part []byte) int { return cap(text) - cap(part) }

// lastBoundary returns the last position before the end of a text at which it can be divided and
// normalized in parts, or 0.
func lastBoundary(text []byte) int {
	i := len(text) - 1
	for i > 0 && !(utf8.RuneStart(text[i]) && isBoundary(text[i:])) {
		i--
	}
	return max(i, 0)
}

// isBoundary reports whether normalization combines no character with the first one of a text.
func isBoundary(text []byte) bool { return norm.NFC.Properties(text).BoundaryBefore() }

// positions returns a function that returns the position in a text that corresponds to one in the
// normalized text, if there is one. Its arguments must not decrease.
func (t *Tokenizer) positions(text []byte) func(normalized int) (int, bool) {
	i, at := 0, 0 // in text and in the normalized text
	return func(normalized int) (int, bool) {
		for at < normalized {
			start := i
			for i == start || i < len(text) && !isBoundary(text[i:]) {
				_, n := utf8.DecodeRune(text[i:])
				i += n
			}
			at += len(t.normalized(text[start:i]))
		}
		return i, at == normalized
	}
}

// A cutter finds the positions at which a text can be cut.
type cutter struct {
	*Tokenizer
	text   []byte
	margin int // bytes after a run that finding pieces and added tokens may take into account
	runEnd int // end of the last run
}

// eachSurePieceEnd calls visit with the positions in the text at which the pieces of a part of it
// end whatever follows the text. The part begins at a position, and is normalized.
func (c *cutter) eachSurePieceEnd(at int, part []byte, visit func(p int)) {
	for stretch := range c.addedSets[1].split(part) {
		begin := at + startOf(part, stretch)
		for start, end := range c.allPieces(stretch) {
			if c.isSure(begin+start, begin+end) {
				visit(begin + end)
			}
		}
	}
}

// isSure reports whether a piece from start to end ends there whatever follows the text, and if
// nothing does. Expressions look no further than to the end of a run of white space or of a word,
// and the margin. At the end of a text, white space may be one piece.
func (c *cutter) isSure(start, end int) bool {
	if end+c.margin > len(c.text) || c.isSpaces(start, end) && c.followsSpaces(end) {
		return false
	}
	if end >= c.runEnd {
		c.runEnd = max(skip(c.text, end, spaces), skip(c.text, end, letters|mark))
	}
	if c.runEnd+c.margin > len(c.text) || c.normalize != nil && !isBoundary(c.text[end:]) {
		return false
	}
	return !c.addedJoin(c.text[end-1], c.text[end])
}

// isSpaces reports whether a piece is nothing but white space.
func (c *cutter) isSpaces(start, end int) bool { return skip(c.text[:end], start, spaces) == end }

// followsSpaces reports whether the last two characters before p are white space.
func (c *cutter) followsSpaces(p int) bool {
	last, n := utf8.DecodeLastRune(c.text[:p])
	before, _ := utf8.DecodeLastRune(c.text[:p-n])
	return classes[last].isAnyOf(spaces) && classes[before].isAnyOf(spaces)
}
