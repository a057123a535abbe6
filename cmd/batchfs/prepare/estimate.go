package prepare

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"batchfs/cmd/batchfs/terminal"
)

const maxSamples = 16 // samples, at most

// estimate says about how many tokens there will be. It encodes samples that begin at places evenly spaced over the bytes of all
// inputs, and takes the bytes up to the next place for such as the sample.
func (o *options) estimate(ctx context.Context, inputs []*input, c *encodeOptions) error {
	var all int64
	texts := 0 // which are documents
	for _, in := range inputs {
		if in.once() {
			return fmt.Errorf("%s: is not a regular file, and --dry-run would use up what it reads", in.path)
		}
		all += in.size()
		if in.format == text && in.size() > 0 {
			texts++
		}
	}
	most := 4 * chunkSize // of a sample
	n := min(maxSamples, 1+all/int64(most))
	var bytes int
	var tokens, documents float64
	var s sample
	for i := range n {
		from, err := locate(inputs, all/n*i)
		if err != nil {
			return err
		}
		if i == 0 || from != s.from { // compressed files are read from the beginning only
			next, err := takeSample(ctx, inputs, from, c, most)
			if err != nil {
				return err
			}
			bytes += next.bytes
			if i == 0 || next.bytes > 0 {
				s = next
			}
		}
		share := float64(all) / float64(n) / float64(max(s.bytes, 1))
		tokens += share * float64(s.tokens)
		documents += share * float64(s.documents)
	}
	_, err := fmt.Fprintf(o.out, "about %d tokens in %d documents, %s (uint%d): %s of %s, %.3g%% looked at\n",
		round(tokens), round(documents+float64(texts)), terminal.Size(round(tokens*float64(c.width))), 8*c.width,
		terminal.Count(int64(len(inputs)), "file", "files"), terminal.Size(all), 100*float64(bytes)/float64(max(all, 1)))
	return err
}

// round returns a number with four digits that are not 0, as an estimate has no more.
func round(x float64) int64 {
	unit := math.Pow(10, math.Max(0, math.Floor(math.Log10(math.Max(x, 1)))-3))
	return int64(math.Round(x/unit) * unit)
}

// locate returns a position near a byte of all inputs. It is at the beginning of a file that is compressed, or parquet; of another, at
// a line of jsonl, or at a character.
func locate(inputs []*input, at int64) (position, error) {
	i := 0
	for i < len(inputs)-1 && at >= inputs[i].size() {
		at -= inputs[i].size()
		i++
	}
	in := inputs[i]
	if at == 0 || in.format == parquet {
		return position{Input: i}, nil
	}
	s, err := in.open(nil, 0, func(int) {})
	if err != nil {
		return position{}, err
	}
	defer s.Close()
	if s.compressed {
		return position{Input: i}, nil
	}
	if _, err := s.file.Seek(at, io.SeekStart); err != nil {
		return position{}, fmt.Errorf("%s: %w", in.path, err)
	}
	for r := bufio.NewReader(s.file); ; at++ {
		b, err := r.ReadByte()
		switch {
		case err == io.EOF:
			return position{Input: i + 1}, nil
		case err != nil:
			return position{}, fmt.Errorf("%s: %w", in.path, err)
		case in.format == text && utf8.RuneStart(b):
			return position{Input: i, Offset: at, Within: true}, nil
		case in.format == jsonl && b == '\n':
			return position{Input: i, Offset: at + 1}, nil
		}
	}
}

// A sample is what was read from a position on.
type sample struct {
	from      position
	bytes     int // of files
	tokens    int
	documents int // lines and rows
}

func takeSample(ctx context.Context, inputs []*input, from position, c *encodeOptions, most int) (sample, error) {
	s := sample{from: from}
	w := &encodeWorker{encodeOptions: c, encoder: c.NewEncoder()}
	enough := errors.New("enough")
	size := 0
	r := newReader(inputs, c)
	r.emit = func(b *chunk) error {
		if err := cmp.Or(ctx.Err(), w.encode(b)); err != nil {
			return err
		}
		for _, e := range b.out {
			s.tokens += len(e.tokens) / c.width
			s.documents += len(e.ends)
		}
		for _, c := range b.pieces {
			if c.in.format == text && c.ends {
				s.documents--
			}
		}
		if size += b.size; size >= most {
			return enough
		}
		return nil
	}
	err := r.read(from)
	s.bytes = int(r.bytes - sizes(inputs[:from.Input]) - from.Offset)
	switch {
	case err == enough:
		err = nil
	case err != nil && from.Offset > 0 && inputs[from.Input].format == jsonl:
		err = fmt.Errorf("%w (lines of %s counted from byte %d on)", err, inputs[from.Input].path, from.Offset)
	}
	return s, err
}
