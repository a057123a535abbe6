package prepare

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"unicode/utf8"
)

// encodeOptions determine how documents become tokens. They are constant while workers run.
type encodeOptions struct {
	tokenizer
	width          int // bytes per token
	fields         []field
	masked         bool
	eot            int64 // end-of-text token, or -1
	eotBegins      bool  // whether eot begins documents instead of ending them
	replaceInvalid bool  // whether to replace invalid bytes by U+FFFD
	skipInvalid    bool  // whether to leave out documents that are not UTF-8
	anyBytes       bool  // whether text need not be UTF-8
	valFraction    float64
	nameStarts     []*nameStart // beginnings of the names of special tokens to count
}

// encodedTokens are the tokens of a chunk that belong to one split.
type encodedTokens struct {
	tokens []byte  // little-endian
	mask   []byte  // one byte per token, if masked
	ends   []int64 // ends of documents, in tokens

	eotInside int64 // end-of-text tokens in the texts
}

// An encodeWorker encodes chunks. It belongs to one goroutine.
type encodeWorker struct {
	*encodeOptions
	encoder
	scratch []uint32
	notes   *notes // counts in the current chunk
}

func (c *encodeOptions) encodeChunks(chunks <-chan *chunk) {
	w := &encodeWorker{encodeOptions: c, encoder: c.NewEncoder()}
	for ch := range chunks {
		ch.err = w.encodeChunk(ch)
		close(ch.done)
	}
}

func (w *encodeWorker) encodeChunk(ch *chunk) error {
	w.notes = &ch.notes
	// Most texts have fewer than three tokens in eight bytes.
	ch.encoded[0].tokens = slices.Grow(ch.encoded[0].tokens, len(ch.text)*w.width*3/8)
	for i := range ch.pieces {
		piece := &ch.pieces[i]
		if err := inputFormats[piece.in.format].encode(w, ch, piece); err != nil {
			return fmt.Errorf("%s: %w", piece.in.path, err)
		}
	}
	return nil
}

func location(unit string, number int64, in *input) string {
	return fmt.Sprintf("%s %d of %s", unit, number, in.path)
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
	if in.val || w.inVal(beginning) {
		out = &ch.encoded[1]
	}
	w.beginDocument(out)
	for _, t := range texts {
		if err := w.appendText(out, t.text, t.mask); err != nil {
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

// appendText encodes a text. It cuts a long text where cuts do not affect the tokens.
func (w *encodeWorker) appendText(out *encodedTokens, t []byte, mask byte) error {
	w.countNames(t)
	for len(t) > 0 {
		part := t
		if len(t) > chunkSize {
			if n := w.Cut(t[:chunkSize]); n > 0 {
				part = t[:n]
			}
		}
		t = t[len(part):]
		w.scratch = w.Append(w.scratch[:0], part)
		if int64(slices.Max(w.scratch)) >= w.Size() {
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

// valKey makes the selection of val independent of other uses of the hash.
const valKey = "batchfs: documents for val\x00"

const valBytes = 1 << 16 // bytes of a document that the selection depends on

// inVal reports whether a document belongs to val. Because only the beginning of its text matters,
// adding or renaming files moves no document, and copies of a text are in the same split.
func (c *encodeOptions) inVal(t []byte) bool {
	if c.valFraction == 0 {
		return false
	}
	sum := sha256.Sum256(append([]byte(valKey), t[:min(len(t), valBytes)]...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < c.valFraction
}

// leavesOutBinary reports whether texts that are not UTF-8 are left out.
func (c *encodeOptions) leavesOutBinary() bool { return c.skipInvalid && !c.anyBytes }

// toValidUTF8 returns the text, with invalid bytes replaced if the options say so, and -1. If
// invalid bytes are neither replaced nor allowed, it returns nil and the index of the first one.
func (c *encodeOptions) toValidUTF8(t []byte) ([]byte, int) {
	switch {
	case c.anyBytes || utf8.Valid(t):
		return t, -1
	case c.replaceInvalid:
		return []byte(string([]rune(string(t)))), -1
	}
	return nil, firstInvalid(t)
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

// pipelineGoroutines counts the goroutines of pipeline, which may outlive it after an error.
var pipelineGoroutines sync.WaitGroup

// pipeline reads chunks, starting at a position, encodes them with run on all processors, and calls
// write with each of them in order. Permits, each for about chunkSize bytes of text, limit the text
// in memory. After an error or a cancellation, it does not wait for the reader, which may be
// blocked by a pipe or a disk.
func pipeline(ctx context.Context, r *reader, from position, run func(<-chan *chunk), write func(*chunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	permits := make(chan struct{}, min(max(32, workers+16), maxChunks))
	todo := make(chan *chunk, cap(permits))
	ordered := make(chan *chunk, cap(permits))

	r.emit = func(ch *chunk) error {
		ch.done = make(chan struct{})
		ch.permits = min(cap(permits), 1+len(ch.text)/chunkSize)
		for range ch.permits {
			select {
			case permits <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		todo <- ch
		ordered <- ch
		return nil
	}
	for range workers {
		pipelineGoroutines.Go(func() { run(todo) })
	}
	var readError error
	pipelineGoroutines.Go(func() {
		readError = r.read(from)
		close(todo)
		close(ordered)
	})
	for {
		var ch *chunk
		select {
		case ch = <-ordered:
		case <-ctx.Done():
		}
		switch {
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case ch == nil:
			pipelineGoroutines.Wait()
			return readError
		}
		<-ch.done
		err := ch.err
		if err == nil {
			err = write(ch)
		}
		if err != nil {
			return err
		}
		n := ch.permits
		ch.recycle()
		for range n {
			<-permits
		}
	}
}
