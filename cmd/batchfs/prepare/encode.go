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

type encodeOptions struct {
	tokenizer
	width    int // of a token, in bytes
	fields   []field
	masked   bool
	eot      int64 // the token that separates documents, or -1
	eotFirst bool  // it begins documents, and does not end them
	replace  bool  // what is not UTF-8 becomes U+FFFD
	skip     bool  // a document that is not UTF-8 is left out
	any      bool  // text need not be UTF-8
	val      float64
}

// encoded is tokens of one split.
type encoded struct {
	tokens []byte  // little-endian
	mask   []byte  // of each token, if there are masks
	ends   []int64 // of documents, in tokens
}

type encodeWorker struct {
	*encodeOptions
	encoder
	scratch []uint32
}

func (c *encodeOptions) run(batches <-chan *chunk) {
	w := &encodeWorker{encodeOptions: c, encoder: c.NewEncoder()}
	for b := range batches {
		b.err = w.encode(b)
		close(b.done)
	}
}

func (w *encodeWorker) encode(b *chunk) error {
	b.out[0].tokens = make([]byte, 0, b.size) // about what they take
	for i := range b.pieces {
		c := &b.pieces[i]
		var err error
		switch c.in.format {
		case text:
			err = w.text(b, c)
		case jsonl:
			err = w.lines(b, c)
		case parquet:
			err = w.row(b, c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.in.path, err)
		}
		c.text = nil
	}
	return nil
}

func (w *encodeWorker) text(b *chunk, c *textPiece) error {
	t, bad := w.valid(c.text)
	switch {
	case w.skip && (bad >= 0 || c.invalid):
		b.leaveOut(c.in.path)
		return nil
	case bad >= 0:
		return fmt.Errorf("not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip, or --by byte", c.at.Offset+int64(bad))
	}
	out := &b.out[0]
	if c.at.Val {
		out = &b.out[1]
	}
	mask := w.fields[len(w.fields)-1].mask
	if c.begins {
		w.begin(out)
	}
	if err := w.append(out, t, mask); err != nil {
		return err
	}
	if c.ends {
		w.end(out, mask)
	}
	return nil
}

func (w *encodeWorker) row(b *chunk, c *textPiece) error {
	t, bad := w.valid(c.text)
	switch {
	case w.skip && bad >= 0:
		b.leaveOut(fmt.Sprintf("row %d of %s", c.at.Offset+1, c.in.path))
		return nil
	case bad >= 0:
		return fmt.Errorf("row %d: not valid UTF-8 at byte %d: use --invalid replace or skip, or --by byte", c.at.Offset+1, bad)
	}
	return w.document(b, []maskedText{{t, w.fields[0].mask}})
}

func (w *encodeWorker) lines(b *chunk, c *textPiece) error {
	number := c.at.Line
	for line := range bytes.Lines(c.text) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if !w.replace && !utf8.Valid(line) {
			if w.skip {
				b.leaveOut(fmt.Sprintf("line %d of %s", number, c.in.path))
				continue
			}
			return fmt.Errorf("line %d: not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip", number, invalid(line))
		}
		texts, err := w.texts(nil, line)
		if err == nil {
			err = w.document(b, texts)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}

// document encodes the texts of a whole document. One without text is left out.
func (w *encodeWorker) document(b *chunk, texts []maskedText) error {
	var beginning []byte
	for _, t := range texts {
		beginning = append(beginning, t.text[:min(len(t.text), valBytes-len(beginning))]...)
	}
	if len(beginning) == 0 {
		return nil
	}
	out := &b.out[0]
	if w.inVal(beginning) {
		out = &b.out[1]
	}
	w.begin(out)
	for _, t := range texts {
		if err := w.append(out, t.text, t.mask); err != nil {
			return err
		}
	}
	w.end(out, texts[len(texts)-1].mask)
	return nil
}

// begin begins a document. What separates it from others is no target that a trainer should learn from.
func (w *encodeWorker) begin(out *encoded) {
	if w.eot >= 0 && w.eotFirst {
		w.put(out, []uint32{uint32(w.eot)}, 0)
	}
}

func (w *encodeWorker) end(out *encoded, mask byte) {
	if w.eot >= 0 && !w.eotFirst {
		w.put(out, []uint32{uint32(w.eot)}, mask)
	}
	out.ends = append(out.ends, int64(len(out.tokens)/w.width))
}

// append encodes a text, in parts that do not change its tokens.
func (w *encodeWorker) append(out *encoded, t []byte, mask byte) error {
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
			return errChanged // since its characters were counted
		}
		w.put(out, w.scratch, mask)
	}
	return nil
}

func (w *encodeWorker) put(out *encoded, tokens []uint32, mask byte) {
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

// valKey makes the choice of documents for val independent of other uses of their hash. Another key chooses others.
const valKey = "batchfs: documents for val\x00"

const valBytes = 1 << 16 // of a document that the choice depends on

// inVal chooses documents for val by the first valBytes of their text: other documents, names and places do not matter, and copies
// of a text fall on the same side.
func (c *encodeOptions) inVal(t []byte) bool {
	if c.val == 0 {
		return false
	}
	sum := sha256.Sum256(append([]byte(valKey), t[:min(len(t), valBytes)]...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < c.val
}

// valid returns a text in valid UTF-8, each other byte replaced by U+FFFD, and -1, or the first byte that may not be replaced.
func (c *encodeOptions) valid(t []byte) ([]byte, int) {
	switch {
	case c.any || utf8.Valid(t):
		return t, -1
	case c.replace:
		return []byte(string([]rune(string(t)))), -1
	}
	return nil, invalid(t)
}

// invalid returns the first byte of a text that is not valid UTF-8.
func invalid(t []byte) int {
	for i := 0; ; {
		r, size := utf8.DecodeRune(t[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
}

// running are the goroutines of pipeline. After an error they may outlive it.
var running sync.WaitGroup

// pipeline reads from a position on, encodes with all cores, and calls write with each chunk in the order of the input. What
// is under way takes some multiple of chunkSize bytes. It returns at once when it is interrupted or write fails: the reader may wait for
// a pipe or a disk.
func pipeline(ctx context.Context, r *reader, from position, run func(<-chan *chunk), write func(*chunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	slots := make(chan struct{}, max(16, 4*workers)) // a MiB of text each
	todo := make(chan *chunk, cap(slots))
	ordered := make(chan *chunk, cap(slots))

	r.emit = func(b *chunk) error {
		b.done = make(chan struct{})
		b.quota = min(cap(slots), 1+b.size/(2*chunkSize))
		for range b.quota {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		todo <- b
		ordered <- b
		return nil
	}
	for range workers {
		running.Go(func() { run(todo) })
	}
	var readError error
	running.Go(func() {
		readError = r.read(from)
		close(todo)
		close(ordered)
	})
	for {
		var b *chunk
		select {
		case b = <-ordered:
		case <-ctx.Done():
		}
		switch {
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case b == nil:
			running.Wait()
			return readError
		}
		<-b.done
		err := b.err
		if err == nil {
			err = write(b)
		}
		if err != nil {
			return err
		}
		for range b.quota {
			<-slots
		}
	}
}
