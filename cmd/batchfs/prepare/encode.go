package prepare

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// encodedTokens are the tokens of a chunk that belong to one split.
type encodedTokens struct {
	tokens []byte  // little-endian
	mask   []byte  // one byte per token, if masked
	ends   []int64 // ends of documents, in tokens

	eotInside int64 // end-of-text tokens in the texts
}

// encodeDocument encodes a document of an input unless it has no text. unit and number say where it
// is, such as line 7.
func (w *encodeWorker) encodeDocument(ch *chunk, in *input, texts []maskedText, unit string, number int64) error {
	var beginning []byte
	for _, t := range texts {
		beginning = append(beginning, t.text[:min(len(t.text), valBytes-len(beginning))]...)
	}
	if len(beginning) == 0 {
		addLeftOut(&ch.notes.Empty, 1, location(unit, number, in))
		return nil
	}
	out := &ch.encoded[0]
	if w.val.has(in, 0, beginning) {
		out = &ch.encoded[1]
	}
	w.beginDocument(out)
	for _, t := range texts {
		if err := w.appendText(out, t.text, t.mask, true); err != nil {
			return err
		}
	}
	w.endDocument(out, texts[len(texts)-1].mask)
	return nil
}

// beginDocument appends the end-of-text token if it begins documents. Its mask is 0, because there
// is nothing to learn from it.
func (w *encodeWorker) beginDocument(out *encodedTokens) {
	if w.eot >= 0 && w.eotBegins {
		w.appendTokens(out, []uint32{uint32(w.eot)}, 0)
	}
}

func (w *encodeWorker) endDocument(out *encodedTokens, mask byte) {
	if w.eot >= 0 && !w.eotBegins {
		w.appendTokens(out, []uint32{uint32(w.eot)}, mask)
	}
	out.ends = append(out.ends, int64(len(out.tokens)/w.width))
}

// appendText encodes a text, or the rest of one if begins is false. It cuts a long text where cuts
// do not affect the tokens.
func (w *encodeWorker) appendText(out *encodedTokens, t []byte, mask byte, begins bool) error {
	w.countNames(t)
	for len(t) > 0 {
		part := t
		if len(t) > chunkSize {
			if n := w.Cut(t[:chunkSize]); n > 0 {
				part = t[:n]
			}
		}
		t = t[len(part):]
		encode := w.Append
		if !begins {
			encode = appendRest(w.encoder)
		}
		w.scratch, begins = encode(w.scratch[:0], part), false
		w.countLacking()
		if len(w.scratch) > 0 && int64(slices.Max(w.scratch)) >= w.Size() {
			return errChanged // has a character that was not counted
		}
		for _, token := range w.scratch {
			if int64(token) == w.eot {
				out.eotInside++
			}
		}
		w.appendTokens(out, w.scratch, mask)
	}
	return nil
}

func (w *encodeWorker) appendTokens(out *encodedTokens, tokens []uint32, mask byte) {
	at := len(out.tokens)
	out.tokens = slices.Grow(out.tokens, len(tokens)*w.width)[:at+len(tokens)*w.width]
	to := out.tokens[at:]
	if w.width == 2 {
		for i, token := range tokens {
			binary.LittleEndian.PutUint16(to[2*i:], uint16(token))
		}
	} else {
		for i, token := range tokens {
			binary.LittleEndian.PutUint32(to[4*i:], token)
		}
	}
	if w.masked {
		out.mask = append(out.mask, bytes.Repeat([]byte{mask}, len(tokens))...)
	}
}

// leavesOutBinary reports whether texts that are not UTF-8 are left out.
func (e *encoding) leavesOutBinary() bool { return e.skipInvalid && !e.anyBytes }

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
