package prepare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"batchfs/cmd/batchfs/prepare/bpe"
	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
)

// An encodeWorker encodes chunks. It belongs to one goroutine.
type encodeWorker struct {
	encoding *encoding
	finder   *field.Finder
	val      valRule
	encoder  encoder
	scratch  []uint32
	notes    *notes // counts in the current chunk
	id       []byte // id of the document in the current line, as JSON

	ids, attention, labels []int64 // lists in the current row of ids
	mask, raw              []byte  // mask and tokens of that row
}

func newEncodeWorker(p *plan) *encodeWorker {
	return &encodeWorker{encoding: &p.encoding, finder: field.NewFinder(p.encoding.fields, p.encoding.masked), val: p.val,
		encoder: p.encoding.tokenizer.NewEncoder()}
}

func (w *encodeWorker) encodeChunks(todo <-chan *chunk) {
	for ch := range todo {
		ch.err = w.encodeChunk(ch)
		close(ch.done)
	}
}

func (w *encodeWorker) encodeChunk(ch *chunk) error {
	w.notes = &ch.notes
	// Most texts have fewer than three tokens in eight bytes.
	train := &ch.encoded[trainSplit]
	train.tokens = slices.Grow(train.tokens, len(ch.text)*w.encoding.width*3/8)
	for i := range ch.pieces {
		piece := &ch.pieces[i]
		if piece.leftOut {
			addLeftOut(&ch.notes.NotUTF8, 1, piece.in.Path)
			continue
		}
		var err error
		switch format := piece.in.Format; {
		case w.encoding.isJSON(format):
			err = w.encodeLines(ch, piece)
		case format.HasRows():
			err = w.encodeRow(ch, piece)
		default:
			err = w.encodeText(ch, piece)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", piece.in.Name(), err)
		}
	}
	return nil
}

func (w *encodeWorker) encodeText(ch *chunk, piece *textPiece) error {
	valid, bad := w.encoding.toValidUTF8(piece.text)
	switch {
	case w.encoding.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, piece.in.Path)
		return nil
	case bad >= 0 && w.encoding.replaceInvalid:
		ch.notes.Replaced.add(piece.in.Path)
	case bad >= 0:
		return fmt.Errorf("not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip, or --by byte", piece.start.Offset+int64(bad))
	}
	out := ch.split(piece.start.Val)
	before := len(out.tokens)
	if piece.startsDocument {
		w.beginDocument(out)
	}
	const mask = 0 // with --mask, there is no text
	switch err := w.appendText(out, valid, mask, piece.startsDocument); {
	case err == input.ErrChanged:
		return err
	case err != nil:
		return fmt.Errorf("the text from byte %d on %w", piece.start.Offset, err)
	}
	if piece.startsDocument && piece.endsDocument && w.lacksTokens(out, before) {
		addLeftOut(&ch.notes.Empty, 1, piece.in.Path)
		return nil
	}
	if piece.endsDocument {
		w.endDocument(out, 0)
	}
	return nil
}

// encodeRow encodes a row that is a text.
func (w *encodeWorker) encodeRow(ch *chunk, piece *textPiece) error {
	at := place{"row", piece.start.Offset + 1}
	valid, bad := w.encoding.toValidUTF8(piece.text)
	switch {
	case w.encoding.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, at.of(piece.in))
		return nil
	case bad >= 0 && w.encoding.replaceInvalid:
		ch.notes.Replaced.add(at.of(piece.in))
	case bad >= 0:
		return fmt.Errorf("%s: not valid UTF-8 at byte %d: use --invalid replace or skip, or --by byte", at, bad)
	}
	ch.notes.Lines++
	if err := w.encodeDocument(ch, piece.in, at, []field.Text{{Bytes: valid, Mask: w.encoding.fields[0].Mask}}); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}

// encodeLines encodes the documents of a piece that is JSON: of its lines, or of its only row.
func (w *encodeWorker) encodeLines(ch *chunk, piece *textPiece) error {
	for at, line := range piece.jsonLines() {
		if err := w.encodeLine(ch, piece.in, at, line); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

// jsonLines yields each line of a piece that is not blank. They are JSON after replaceNaN. If the
// piece is a row of another format, the only line is the JSON of that row.
func (p *textPiece) jsonLines() iter.Seq2[place, []byte] {
	return func(yield func(place, []byte) bool) {
		if p.in.Format != input.JSONL {
			yield(place{"row", p.start.Offset + 1}, p.text)
			return
		}
		at := place{"line", p.start.Line}
		for line := range bytes.Lines(p.text) {
			at.number++
			line = bytes.TrimPrefix(line, byteOrderMark) // concatenated files have one each
			if len(bytes.TrimSpace(line)) > 0 && !yield(at, line) {
				return
			}
		}
	}
}

// encodeLine encodes the document of a line of JSON.
func (w *encodeWorker) encodeLine(ch *chunk, in *input.File, at place, line []byte) error {
	if !utf8.Valid(line) {
		switch {
		case w.encoding.replaceInvalid:
			line = replaceInvalid(line)
			ch.notes.Replaced.add(at.of(in))
		case w.encoding.skipInvalid:
			addLeftOut(&ch.notes.NotUTF8, 1, at.of(in))
			return nil
		default:
			return fmt.Errorf("not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip", firstInvalid(line))
		}
	}
	line = replaceNaN(line)
	ch.notes.Lines++
	encode := w.encodeLineTexts
	if w.encoding.ids {
		encode = w.encodeIDs
	}
	var err error
	if w.encoding.id != nil {
		w.id, err = w.encoding.id.Value(line)
	}
	if err == nil {
		err = encode(ch, in, at, line)
	}
	if unusable, ok := errors.AsType[field.UnusableError](err); ok {
		if w.encoding.skipInvalid {
			ch.notes.addUnusable(unusable.Kind, at.of(in))
			return nil
		}
		return fmt.Errorf("%w; to leave such %ss out, use --invalid skip", err, at.kind)
	}
	return err
}

func (w *encodeWorker) encodeLineTexts(ch *chunk, in *input.File, at place, line []byte) error {
	texts, counted, err := w.finder.Texts(line)
	if err != nil {
		return err
	}
	ch.notes.Counts.AddAll(counted)
	return w.encodeDocument(ch, in, at, texts)
}

// encodeDocument encodes a document of an input unless it has no text or no tokens.
func (w *encodeWorker) encodeDocument(ch *chunk, in *input.File, at place, texts []field.Text) error {
	var beginning []byte
	for _, t := range texts {
		beginning = append(beginning, t.Bytes[:min(len(t.Bytes), valBytes-len(beginning))]...)
	}
	if len(beginning) == 0 {
		addLeftOut(&ch.notes.Empty, 1, at.of(in))
		return nil
	}
	out := ch.split(w.val.has(in, 0, beginning))
	before := len(out.tokens)
	w.beginDocument(out)
	for _, t := range texts {
		if err := w.appendText(out, t.Bytes, t.Mask, true); err != nil {
			return err
		}
	}
	if w.lacksTokens(out, before) {
		addLeftOut(&ch.notes.Empty, 1, at.of(in))
		return nil
	}
	w.endDocument(out, texts[len(texts)-1].Mask)
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
		release, err := w.reserveMemory(part)
		if err != nil {
			return err
		}
		if begins {
			w.scratch = w.encoder.Append(w.scratch[:0], part)
		} else {
			w.scratch = appendRest(w.encoder, w.scratch[:0], part)
		}
		begins = false
		release()
		w.countLacking()
		if len(w.scratch) > 0 && int64(slices.Max(w.scratch)) >= w.encoding.tokenizer.Size() {
			return input.ErrChanged // has a character that was not counted
		}
		for _, token := range w.scratch {
			if int64(token) == w.encoding.eot {
				out.eot.EOTTokens++
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
		e.TakeLacking(func(b byte, n int64) { w.notes.Lacking.Add(fmt.Sprintf("%#02x", b), n) })
	}
}
