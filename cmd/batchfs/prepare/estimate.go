package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"batchfs/cmd/batchfs/vocabulary"
)

const samples = 16 // inputs that are looked at, evenly spaced

// estimate says about how many tokens there will be: as many for each byte of the files as at the beginning of some of them.
func (o *options) estimate(ctx context.Context, out io.Writer, inputs []*input, c *coding) error {
	var all int64
	for _, in := range inputs {
		if in.once() {
			return fmt.Errorf("%s: is not a regular file, and --dry-run would use up what it reads", in.path)
		}
		all += in.size()
	}
	w := &worker{coding: c, encoder: c.NewEncoder()}
	enough := errors.New("enough")
	var bytes, tokens, documents int
	sampled := min(samples, len(inputs))
	for i := range sampled {
		size := 0
		r := &reader{
			inputs: inputs[i*len(inputs)/sampled:][:1], column: c.fields[0].path, inVal: c.inVal, cut: c.cut,
			tally: func(n int) { bytes += n },
			emit: func(b *batch) error {
				if err := cmp.Or(ctx.Err(), w.batch(b)); err != nil {
					return err
				}
				for _, e := range b.out {
					tokens += len(e.tokens) / c.width
					documents += len(e.ends)
				}
				if size += b.size; size >= 4*chunkSize {
					return enough
				}
				return nil
			},
		}
		if err := r.read(position{}); err != nil && err != enough {
			return err
		}
	}
	about := func(n int) float64 { return float64(n) * float64(all) / float64(max(bytes, 1)) }
	dtype := fmt.Sprintf("uint%d", 8*c.width)
	if c.Name() == vocabulary.Char {
		dtype = "uint16, unless there are more than 65536 characters"
	}
	_, err := fmt.Fprintf(out, "about %.4g tokens in %.4g documents, %.4g bytes (%s): %d files of %d bytes, %.2g%% looked at\n",
		about(tokens), about(documents), about(tokens)*float64(c.width), dtype, len(inputs), all, 100*float64(bytes)/float64(max(all, 1)))
	return err
}
