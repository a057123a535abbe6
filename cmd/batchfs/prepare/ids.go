package prepare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/vocabulary"
)

// checkIDs returns an error if an option that was given only makes sense for texts, although --ids
// was given.
func (s *settings) checkIDs(isGiven func(option string) bool) error {
	for _, option := range []string{"field", "mask", "special", "eot"} {
		if s.IDs != "" && isGiven(option) {
			return fmt.Errorf("--%s: is for texts, but --ids reads ids, which are written as they are: leave one of them out", option)
		}
	}
	return nil
}

// resolveIDs checks the settings for --ids, and sets those that depend on others.
func (s *settings) resolveIDs() error {
	hasTokenizer := s.By != vocabulary.Char // which is the default
	switch {
	case s.IDs == "" && s.VocabSize != 0:
		return errors.New("--vocab-size: is only for --ids; with texts, the tokenizer decides")
	case s.IDs == "":
		return nil
	case s.VocabSize < 0 || s.VocabSize > 1<<32:
		return fmt.Errorf("--vocab-size: must be from 1 to %d (got %d)", int64(1)<<32, s.VocabSize)
	case hasTokenizer == (s.VocabSize > 0):
		return errors.New("--ids: say what the ids mean, with either --by FILE, the tokenizer that made them, or --vocab-size N, if all are below N")
	case s.VocabSize > 0 && s.EOTToken != "":
		return errors.New("--eot-token: needs the tokenizer: give it with --by instead of --vocab-size")
	case field.New(s.IDs, 0).InList():
		return fmt.Errorf("--ids: must lead to one list of ids in each line or row, and not through another list (got %q)", s.IDs)
	}
	s.Field = ""
	if s.VocabSize > 0 {
		s.By = ""
	}
	return nil
}

// lookForLabels finds out whether the first row has labels, and thus whether the token files have a
// mask.
func (p *plan) lookForLabels(ctx context.Context) error {
	for _, in := range p.inputs {
		if in.Stdin != nil { // what is read here must be read again
			read, rest := new(bytes.Buffer), in.Stdin
			in.Stdin = io.TeeReader(rest, read)
			defer func() { in.Stdin = io.MultiReader(read, rest) }()
		}
	}
	result, looked := make(chan error, 1), 0
	look := func(ch *chunk) error { return p.lookIntoChunk(ch, &looked) }
	pipelineGoroutines.Go(func() { result <- newReader(p, "", look).read(position{}) })
	select {
	case err := <-result:
		if err == errEnough {
			err = nil
		}
		return err
	case <-ctx.Done(): // does not wait for the reader, which a pipe may block
		return command.ErrInterrupted
	}
}

// lookIntoChunk looks for labels in the first row that has ids. It returns errEnough if it has
// found this row, or gives up: at a row that cannot be used and is not left out, or after minLines
// rows. looked counts the rows.
func (p *plan) lookIntoChunk(ch *chunk, looked *int) error {
	for _, piece := range ch.pieces {
		if piece.in.Format == input.Text { // it is left out
			continue
		}
		for at, line := range piece.jsonLines() {
			row, err := p.encoding.fields[0].IDRow(replaceNaN(line))
			hasIDs := false
			if err == nil {
				var ids []int64
				ids, err = field.AppendIntegers(nil, row.IDs, "")
				hasIDs = err == nil && len(ids) > 0
			}
			*looked++
			if hasIDs || err != nil && !p.encoding.skipInvalid || *looked == minLines {
				p.encoding.masked, p.encoding.first = hasIDs && row.Labels != nil, at.of(piece.in)
				return errEnough
			}
		}
	}
	return nil
}
