package prepare

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"batchfs/cmd/batchfs/prepare/bpe"
)

// encodeDocument encodes a document of an input unless it has no text or no tokens.
func (w *encodeWorker) encodeDocument(ch *chunk, in *input, at place, texts []maskedText) error {
	var beginning []byte
	for _, t := range texts {
		beginning = append(beginning, t.text[:min(len(t.text), valBytes-len(beginning))]...)
	}
	if len(beginning) == 0 {
		addLeftOut(&ch.notes.Empty, 1, at.of(in))
		return nil
	}
	out := ch.split(w.val.has(in, 0, beginning))
	before := len(out.tokens)
	w.beginDocument(out)
	for _, t := range texts {
		if err := w.appendText(out, t.text, t.mask, true); err != nil {
			return err
		}
	}
	if w.lacksTokens(out, before) {
		addLeftOut(&ch.notes.Empty, 1, at.of(in))
		return nil
	}
	w.endDocument(out, texts[len(texts)-1].mask)
	return nil
}

// lacksTokens reports whether a document that begins after the given number of bytes of tokens has
// none, even with an end-of-text token, because the vocabulary lacks all bytes of its text.
func (w *encodeWorker) lacksTokens(out *encodedTokens, before int) bool {
	return w.encoding.eot < 0 && len(out.tokens) == before
}

// beginDocument appends the end-of-text token if it begins documents. Its mask is 0, because there
// is nothing to learn from it.
func (w *encodeWorker) beginDocument(out *encodedTokens) {
	if w.encoding.eot >= 0 && w.encoding.eotBegins {
		w.appendTokens(out, []uint32{uint32(w.encoding.eot)}, 0)
	}
}

func (w *encodeWorker) endDocument(out *encodedTokens, mask byte) {
	if w.encoding.eot >= 0 && !w.encoding.eotBegins {
		w.appendTokens(out, []uint32{uint32(w.encoding.eot)}, mask)
	}
	w.appendEnd(out)
}

// appendEnd ends a document after the last token.
func (w *encodeWorker) appendEnd(out *encodedTokens) {
	out.ends = append(out.ends, int64(len(out.tokens)/w.encoding.width))
	if w.encoding.id != nil {
		out.ids = append(append(out.ids, w.id...), '\n')
	}
}

// appendText encodes a text, or the rest of one if begins is false. It cuts a long text where cuts
// do not affect the tokens.
func (w *encodeWorker) appendText(out *encodedTokens, t []byte, mask byte, begins bool) error {
	w.countNames(t)
	for len(t) > 0 {
		part := t
		if len(t) > chunkSize {
			if n := w.encoding.tokenizer.Cut(t[:chunkSize]); n > 0 {
				part = t[:n]
			}
		}
		t = t[len(part):]
		encode := w.encoder.Append
		if !begins {
			encode = appendRest(w.encoder)
		}
		release, err := w.reserveMemory(part)
		if err != nil {
			return err
		}
		w.scratch, begins = encode(w.scratch[:0], part), false
		release()
		w.countLacking()
		if len(w.scratch) > 0 && int64(slices.Max(w.scratch)) >= w.encoding.tokenizer.Size() {
			return errChanged // has a character that was not counted
		}
		for _, token := range w.scratch {
			if int64(token) == w.encoding.eot {
				out.eot.EOTInside++
			}
		}
		w.appendTokens(out, w.scratch, mask)
	}
	return nil
}

func (w *encodeWorker) appendTokens(out *encodedTokens, tokens []uint32, mask byte) {
	out.tokens = appendLittleEndian(out.tokens, tokens, w.encoding.width)
	if w.encoding.masked {
		out.mask = append(out.mask, bytes.Repeat([]byte{mask}, len(tokens))...)
	}
}

// appendLittleEndian appends tokens of width bytes each.
func appendLittleEndian(raw []byte, tokens []uint32, width int) []byte {
	at := len(raw)
	raw = slices.Grow(raw, len(tokens)*width)[:at+len(tokens)*width]
	to := raw[at:]
	if width == 2 {
		for i, token := range tokens {
			binary.LittleEndian.PutUint16(to[2*i:], uint16(token))
		}
	} else {
		for i, token := range tokens {
			binary.LittleEndian.PutUint32(to[4*i:], token)
		}
	}
	return raw
}

// countLacking counts the bytes that the vocabulary lacks in the text that was encoded last.
func (w *encodeWorker) countLacking() {
	if e, ok := w.encoder.(*bpe.Encoder); ok {
		e.TakeLacking(func(b byte, n int64) { w.notes.Lacking.add(fmt.Sprintf("%#02x", b), n) })
	}
}
