package bpe

import (
	"bytes"
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc returns a text in NFC, exactly as the tokenizers library computes it. Unlike package norm,
// that library does not know marks added after Unicode 9, inserts no joiner (U+034F) after 30
// marks, and does not confuse characters whose lower 16 bits are equal, such as U+10061 and U+0061.
func nfc(text []byte) []byte {
	if norm.NFC.IsNormal(text) {
		return text
	}
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		// Invalid UTF-8, which IndexFunc reports as utf8.RuneError, is copied unchanged.
		end := bytes.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError || unicode.Is(marksSinceUnicode10, r) })
		if end < 0 {
			end = len(text)
		}
		_, n := utf8.DecodeRune(text[end:])
		out = append(append(out, composeNFC(text[:end])...), text[end:end+n]...)
		text = text[end+n:]
	}
	return out
}

// marksSinceUnicode10 has the characters of Unicode 10 and later that are reordered as marks or
// compose with the character before them. The tokenizers library treats them as letters.
var marksSinceUnicode10 = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x07fd, 0x07fd, 1}, {0x0898, 0x089f, 1}, {0x08ca, 0x08d3, 1}, {0x09fe, 0x09fe, 1}, {0x0c3c, 0x0c3c, 1},
		{0x0d3b, 0x0d3c, 1}, {0x0eba, 0x0eba, 1}, {0x1715, 0x1715, 1}, {0x1abf, 0x1ace, 1}, {0x1df6, 0x1dfa, 1},
		{0xa82c, 0xa82c, 1},
	},
	R32: []unicode.Range32{
		{0x10d24, 0x10d27, 1}, {0x10eab, 0x10eac, 1}, {0x10efd, 0x10eff, 1}, {0x10f46, 0x10f50, 1}, {0x10f82, 0x10f85, 1},
		{0x11070, 0x11070, 1}, {0x1133b, 0x1133b, 1}, {0x1145e, 0x1145e, 1}, {0x11839, 0x1183a, 1}, {0x11930, 0x11930, 1},
		{0x1193d, 0x1193e, 1}, {0x11943, 0x11943, 1}, {0x119e0, 0x119e0, 1}, {0x11a34, 0x11a34, 1}, {0x11a47, 0x11a47, 1},
		{0x11a99, 0x11a99, 1}, {0x11d42, 0x11d42, 1}, {0x11d44, 0x11d45, 1}, {0x11d97, 0x11d97, 1}, {0x11f41, 0x11f42, 1},
		{0x16ff0, 0x16ff1, 1}, {0x1e08f, 0x1e08f, 1}, {0x1e130, 0x1e136, 1}, {0x1e2ae, 0x1e2ae, 1}, {0x1e2ec, 0x1e2ef, 1},
		{0x1e4ec, 0x1e4ef, 1},
	},
}

// composeNFC computes NFC by its definition.
func composeNFC(text []byte) []byte {
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
	base, last := -1, uint8(0) // index of the base character, and class of the previous mark
	for _, r := range all {
		c := class(r)
		if base >= 0 && !norm.NFC.PropertiesString(string(r)).BoundaryBefore() && (base == len(out)-1 || last < c) {
			two := string(out[base]) + string(r)
			both := []rune(norm.NFC.String(two))
			if len(both) == 1 && norm.NFD.String(string(both)) == norm.NFD.String(two) {
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
