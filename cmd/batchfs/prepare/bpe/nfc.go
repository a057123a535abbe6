package bpe

import (
	"slices"

	"golang.org/x/text/unicode/norm"
)

// nfc returns a text in NFC. Package norm puts a joiner (U+034F) after 30 marks, as Unicode's Stream-Safe Text Format has it;
// tokenizers does not, so a run of many marks is normalized here.
func nfc(text []byte) []byte {
	if norm.NFC.IsNormal(text) {
		return text
	}
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		from, to := manyMarks(text)
		out = norm.NFC.Append(out, text[:from]...)
		out = append(out, compose(text[from:to])...)
		text = text[to:]
	}
	return out
}

// manyMarks returns where the first run of marks ends of which 30 can come, and where the character before it begins; or the end
// of the text twice.
func manyMarks(text []byte) (from, to int) {
	for i := 0; i < len(text); {
		start, marks := i, 0
		c, n := classAt(text, i)
		for ; c == mark; marks++ {
			if i += n; i == len(text) {
				break
			}
			c, n = classAt(text, i)
		}
		if marks > 7 { // one can become four
			return max(norm.NFC.LastBoundary(text[:start]), 0), i
		}
		i += n
	}
	return len(text), len(text)
}

// compose is NFC by its definition: decompose, sort the marks of each character by their class, and put together what one
// character stands for.
func compose(text []byte) []byte {
	var all []rune
	for i := 0; i < len(text); {
		p := norm.NFD.Properties(text[i:])
		if d := p.Decomposition(); d != nil {
			all = append(all, []rune(string(d))...)
		} else {
			all = append(all, []rune(string(text[i:i+max(p.Size(), 1)]))...)
		}
		i += max(p.Size(), 1)
	}
	class := func(r rune) uint8 { return norm.NFC.PropertiesString(string(r)).CCC() }
	for i := 0; i < len(all); i++ {
		end := i
		for end < len(all) && class(all[end]) != 0 {
			end++
		}
		slices.SortStableFunc(all[i:end], func(a, b rune) int { return int(class(a)) - int(class(b)) })
		i = end
	}
	out := all[:0]
	base, last := -1, uint8(0) // the character that marks go to, and the class of the mark before
	for _, r := range all {
		c := class(r)
		if base >= 0 && (base == len(out)-1 || last < c) {
			if both := []rune(norm.NFC.String(string(out[base]) + string(r))); len(both) == 1 {
				out[base] = both[0]
				continue
			}
		}
		if out = append(out, r); c == 0 {
			base = len(out) - 1
		}
		last = c
	}
	return []byte(string(out))
}
