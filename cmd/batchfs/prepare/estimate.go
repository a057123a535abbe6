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

	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/terminal"
)

const maxSamples = 16

// estimate prints about how many tokens the inputs have. It encodes samples, evenly spaced over all
// inputs, and extrapolates from each sample to the next.
func (o *options) estimate(ctx context.Context, p *plan) error {
	texts := 0 // text files, each of which is one document
	for _, in := range p.inputs {
		if in.ReadableOnce() {
			return fmt.Errorf("%s: is not a regular file, so --dry-run would consume its content", in.Path)
		}
		if in.Format == input.Text && in.Size() > 0 {
			texts++
		}
	}
	all, sampleBytes := totalSize(p.inputs), 32*chunkSize
	n := min(maxSamples, 1+all/int64(sampleBytes))
	var bytes int64
	var tokens, documents float64
	var s *sample
	for i := range n {
		from, err := nearbyPosition(p.inputs, all/n*i)
		if err != nil {
			return err
		}
		if i == 0 || from != s.from { // samples in one compressed file share a position
			next, err := takeSample(ctx, p, from, sampleBytes)
			if err != nil {
				return err
			}
			bytes += next.bytes
			if i == 0 || next.bytes > 0 {
				s = next
			}
		}
		scale := float64(all) / float64(n) / float64(max(s.bytes, 1))
		tokens += scale * float64(s.tokens)
		documents += scale * float64(s.documents)
	}
	_, err := fmt.Fprintf(o.stdout, "about %d tokens in %d documents, %s (uint%d): %s of %s, %.3g%% sampled\n",
		roundTo4Digits(tokens), roundTo4Digits(documents+float64(texts)), terminal.FormatBytes(roundTo4Digits(tokens*float64(p.encoding.width))), 8*p.encoding.width,
		terminal.Plural(int64(len(p.inputs)), "file", "files"), terminal.FormatBytes(all), min(100, 100*float64(bytes)/float64(max(all, 1))))
	return err
}

func roundTo4Digits(x float64) int64 {
	unit := math.Pow(10, math.Max(0, math.Floor(math.Log10(math.Max(x, 1)))-3))
	return int64(math.Round(x/unit) * unit)
}

// nearbyPosition returns a position near offset at in the concatenated inputs: the beginning of a
// line or character, or, in a compressed file or one of rows, of the file.
func nearbyPosition(inputs []*input.File, at int64) (position, error) {
	i := 0
	for i < len(inputs)-1 && at >= inputs[i].Size() {
		at -= inputs[i].Size()
		i++
	}
	in := inputs[i]
	if at == 0 || in.Format.HasRows() {
		return position{Input: i}, nil
	}
	s, err := in.Open(0, func(int) {})
	if err != nil {
		return position{}, fmt.Errorf("%s: %w", in.Path, err)
	}
	defer s.Close()
	if s.Compressed() {
		return position{Input: i}, nil
	}
	file, size, err := s.Content()
	if err != nil {
		return position{}, fmt.Errorf("%s: %w", in.Path, err)
	}
	for r := bufio.NewReader(io.NewSectionReader(file, at, size-at)); ; at++ {
		b, err := r.ReadByte()
		switch {
		case err == io.EOF:
			return position{Input: i + 1}, nil
		case err != nil:
			return position{}, fmt.Errorf("%s: %w", in.Path, err)
		case in.Format == input.Text && utf8.RuneStart(b):
			return position{Input: i, Offset: at, Within: true}, nil
		case in.Format == input.JSONL && b == '\n':
			return position{Input: i, Offset: at + 1}, nil
		}
	}
}

// A sample counts the tokens of a part of the inputs.
type sample struct {
	ctx       context.Context
	worker    *encodeWorker
	from      position
	textBytes int // bytes of text to encode

	bytes     int64 // bytes of files read
	tokens    int64
	documents int // lines and rows only
}

// takeSample encodes about textBytes of text, beginning at a position.
func takeSample(ctx context.Context, p *plan, from position, textBytes int) (*sample, error) {
	s := &sample{ctx: ctx, worker: newEncodeWorker(p), from: from, textBytes: textBytes}
	r := newReader(p, "", s.add)
	err := r.read(from)
	// If from is the end, no input has been opened.
	s.bytes = max(0, r.bytesRead-totalSize(p.inputs[:from.Input])-from.Offset)
	switch {
	case err == errEnough:
		err = nil
	case err != nil && from.Offset > 0 && p.inputs[from.Input].Format == input.JSONL:
		err = fmt.Errorf("%w (lines of %s are counted from byte %d on)", err, p.inputs[from.Input].Path, from.Offset)
	}
	return s, err
}

var errEnough = errors.New("the sample is large enough")

// add encodes a chunk and counts its tokens. It returns errEnough after the last chunk.
func (s *sample) add(ch *chunk) error {
	if err := cmp.Or(s.ctx.Err(), s.worker.encodeChunk(ch)); err != nil {
		return err
	}
	s.tokens += ch.tokens(s.worker.encoding.width)
	for _, e := range ch.encoded {
		s.documents += len(e.ends)
	}
	for _, piece := range ch.pieces {
		if piece.in.Format == input.Text && piece.endsDocument {
			s.documents--
		}
	}
	if s.textBytes -= len(ch.text); s.textBytes <= 0 {
		return errEnough
	}
	return nil
}
