package bpe

import (
	"bytes"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// LastPieceEnd returns the last position in a text at which a piece ends whatever follows the text,
// or 0. The text must begin a document, or follow such a position, and the text after the position
// must be encoded with [Encoder.AppendRest]. It is for byte-level vocabularies, and finds none in
// text that normalization changes.
func (t *Tokenizer) LastPieceEnd(text []byte) (last int) {
	// The least margin is two characters, or a contraction and a character.
	c := cutter{Tokenizer: t, text: text, margin: 8}
	for _, a := range t.addedSets {
		if a != nil {
			c.margin += a.lengths[0]
		}
	}
	for original := range t.addedSets[0].split(text) {
		normalized := t.normalized(original)
		if !bytes.Equal(normalized, original) {
			continue // positions in the normalized text are others
		}
		at := startOf(text, original)
		for part := range t.addedSets[1].split(normalized) {
			var found [maxFinders]span
			var ends [256]int
			begin := startOf(normalized, part)
			for i := 0; i < len(part); {
				n := t.pieceEnds(part, i, ends[:], &found)
				for _, i = range ends[:n] {
					if p := at + begin + i; c.isSure(p) {
						last = p
					}
				}
			}
		}
	}
	return last
}

// startOf returns the position at which a part of a text begins.
func startOf(text, part []byte) int { return cap(text) - cap(part) }

// A cutter finds the positions at which a text can be cut.
type cutter struct {
	*Tokenizer
	text   []byte
	margin int // bytes after a run that finding pieces and added tokens may take into account
	runEnd int // end of the last run
}

// isSure reports whether a piece that ends at p does so whatever follows the text, and if nothing
// does. Expressions look no further than to the end of a run of white space or of a word, and the
// margin. At the end of a text, white space may be one piece.
func (c *cutter) isSure(p int) bool {
	if p+c.margin > len(c.text) || c.followsSpaces(p) {
		return false
	}
	if p >= c.runEnd {
		c.runEnd = max(skip(c.text, p, spaces), skip(c.text, p, letters|mark))
	}
	if c.runEnd+c.margin > len(c.text) || c.normalize != nil && !norm.NFC.Properties(c.text[p:]).BoundaryBefore() {
		return false
	}
	return !c.addedJoin(c.text[p-1], c.text[p])
}

// followsSpaces reports whether the last two characters before p are white space.
func (c *cutter) followsSpaces(p int) bool {
	last, n := utf8.DecodeLastRune(c.text[:p])
	before, _ := utf8.DecodeLastRune(c.text[:p-n])
	return classes[last].isAnyOf(spaces) && classes[before].isAnyOf(spaces)
}
