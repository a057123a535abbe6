package prepare

import "unicode/utf8"

// toValidUTF8 returns the text, and the index of its first byte that is not valid UTF-8, or -1 if
// there is none or any bytes are allowed. Invalid bytes are replaced if the options say so;
// otherwise, there is no text.
func (e *encoding) toValidUTF8(t []byte) ([]byte, int) {
	switch {
	case e.anyBytes || utf8.Valid(t):
		return t, -1
	case e.replaceInvalid:
		return replaceInvalid(t), firstInvalid(t)
	}
	return nil, firstInvalid(t)
}

// replaceInvalid replaces each part of a text that is not valid UTF-8 by U+FFFD. Like Python, Rust
// and browsers, it takes the longest part that begins a valid character, and otherwise one byte.
func replaceInvalid(t []byte) []byte {
	valid := make([]byte, 0, len(t)+utf8.UTFMax)
	for len(t) > 0 {
		r, n := decodeRune(t)
		valid, t = utf8.AppendRune(valid, r), t[n:]
	}
	return valid
}

// decodeRune is utf8.DecodeRune, except that the length of an invalid part may exceed 1.
func decodeRune(t []byte) (rune, int) {
	r, n := utf8.DecodeRune(t)
	if r == utf8.RuneError && n == 1 {
		for n < len(t) && !utf8.FullRune(t[:n+1]) {
			n++
		}
	}
	return r, n
}

// firstInvalid returns the index of the first byte that is not valid UTF-8; there must be one.
func firstInvalid(t []byte) int {
	for i := 0; ; {
		r, size := utf8.DecodeRune(t[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
}

// runeEnd returns the length of text without an incomplete character at its end.
func runeEnd(text []byte) int {
	last := max(0, len(text)-1)
	for last > max(0, len(text)-utf8.UTFMax) && !utf8.RuneStart(text[last]) {
		last--
	}
	if utf8.FullRune(text[last:]) {
		return len(text)
	}
	return last
}
