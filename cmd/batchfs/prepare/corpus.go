package prepare

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
)

// A corpus is all texts as one stream of characters or bytes, which is read in two passes.
type corpus struct {
	texts    []text
	by       string             // vocabulary.Char or vocabulary.Byte
	tokens   int64              // of all texts
	ids      []int32            // by character: its id + 1, or 0 for a character that no text has
	in       *bufio.Reader      // of the text being read
	stderr   io.Writer          // where progress is shown
	progress *terminal.Progress // of the pass, in bytes
}

func newCorpus(texts []text, by string, stderr io.Writer) *corpus {
	return &corpus{texts: texts, by: by, ids: make([]int32, utf8.MaxRune+1), in: bufio.NewReaderSize(nil, 1<<20), stderr: stderr}
}

// start begins a pass. Its progress is shown until progress.Finish.
func (c *corpus) start(pass string) {
	var bytes int64
	for _, t := range c.texts {
		bytes += t.info.Size()
	}
	c.progress = terminal.NewProgress(c.stderr, pass, bytes, terminal.Bytes)
}

// count is the first pass. It counts the tokens of each text and returns the vocabulary of all.
func (c *corpus) count(ctx context.Context) (*vocabulary.Vocabulary, error) {
	c.start("counting")
	defer c.progress.Finish()
	size := 0
	if c.by == vocabulary.Byte {
		for b := range 256 { // all of them, so that the id is the value
			c.ids[b] = 1
		}
	}
	for i := range c.texts {
		t := &c.texts[i]
		err := c.each(ctx, t.path, func(r rune) error {
			t.tokens++
			if c.ids[r] == 0 {
				c.ids[r] = 1
				if size++; size > 1<<16 {
					return fmt.Errorf("%s: more than 65536 different characters by here, and uint16 numbers no more: use --by byte", t.path)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		c.tokens += t.tokens
	}
	v := &vocabulary.Vocabulary{Kind: c.by}
	for r := range c.ids {
		if c.ids[r] != 0 {
			v.Size++
			c.ids[r] = int32(v.Size)
			if c.by == vocabulary.Char {
				v.Tokens = append(v.Tokens, string(rune(r)))
			}
		}
	}
	return v, nil
}

// encode is the second pass. It writes the first train tokens to dir/train.bin and the others to dir/val.bin.
func (c *corpus) encode(ctx context.Context, dir string, train int64) error {
	c.start("encoding")
	defer c.progress.Finish()
	return writeFile(filepath.Join(dir, "train.bin"), func(w *bufio.Writer) error {
		return writeFile(filepath.Join(dir, "val.bin"), func(val *bufio.Writer) error {
			var written, want int64
			for _, t := range c.texts {
				changed := fmt.Errorf("%s: changed while it was read: run again when nothing writes to it", t.path)
				want += t.tokens
				err := c.each(ctx, t.path, func(r rune) error {
					if c.ids[r] == 0 || written == want {
						return changed
					}
					if written == train {
						w = val
					}
					written++
					id := c.ids[r] - 1
					w.WriteByte(byte(id)) // an error stays in w, so the next line has it
					return w.WriteByte(byte(id >> 8))
				})
				if err != nil {
					return err
				}
				if written != want {
					return changed
				}
			}
			return nil
		})
	})
}

// each calls visit with every character, or byte, of a text.
func (c *corpus) each(ctx context.Context, path string, visit func(rune) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c.in.Reset(readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("stopped before anything was written: %w", err)
		}
		n, err := f.Read(p)
		c.progress.Add(n)
		return n, err
	}))
	next := c.in.ReadRune
	if c.by == vocabulary.Byte {
		next = func() (rune, int, error) { b, err := c.in.ReadByte(); return rune(b), 1, err }
	}
	for offset := 0; ; {
		r, size, err := next()
		if r == utf8.RuneError && size == 1 {
			// Not UTF-8, unless the read failed within a character: Peek has that error.
			if _, err = c.in.Peek(utf8.UTFMax); err == nil || err == io.EOF {
				return fmt.Errorf("%s: not valid UTF-8 at byte %d: convert it to UTF-8, or use --by byte", path, offset)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = visit(r)
		}
		if err != nil {
			return err
		}
		offset += size
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// writeFile syncs the file: a later rename then never names less than the whole file, not even after a power cut.
func writeFile(path string, write func(*bufio.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = write(w); err == nil {
		err = cmp.Or(w.Flush(), f.Sync())
	}
	return cmp.Or(err, f.Close())
}
