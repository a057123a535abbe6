package dataset

import (
	"context"
	"fmt"
	"io"
	"strings"

	"batchfs/cmd/batchfs/command"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/printable"
	"batchfs/sampler"
)

// A FoundToken is a token with the batches of one epoch that hold it.
type FoundToken struct {
	File        jsonbytes.String `json:"file"`  // token file that holds the token
	Index       int64            `json:"index"` // position of the token in the file
	Epoch       uint64           `json:"epoch"`
	Occurrences []occurrence     `json:"occurrences"`
	Reason      string           `json:"reason,omitempty"` // why a long document is in no batch

	pos   int64 // position of the token in the split
	split string
}

type occurrence struct {
	Batch uint64 `json:"batch"`
	Rank  int    `json:"rank"`
	J     int    `json:"j"`     // index of the row in the batch
	Row   uint64 `json:"row"`   // global number of that row
	Index int    `json:"index"` // position of the token in the row, from 0 to T

	elements []string // names of the elements that hold the token, such as x[0, 5]
}

// Find returns the batches of an epoch that hold token number pos, counted over all sources, one
// source after the other. It calls progress with the number of rows searched and their total. It
// returns an error if pos is out of range or ctx is canceled.
func (d *Dataset) Find(
	ctx context.Context, pos int64, epoch uint64, progress func(rows, of int64),
) (*FoundToken, error) {
	if pos < 0 || pos >= d.Len() {
		return nil, fmt.Errorf("--find: must be from 0 to %d, the last token of the split (got %d)", d.Len()-1, pos)
	}
	source, inSource := 0, pos
	for inSource >= d.mains[source].Len() {
		inSource -= d.mains[source].Len()
		source++
	}
	at := d.mains[source].Locate(inSource)
	f := &FoundToken{File: jsonbytes.String(at.Path), Index: at.Index, Epoch: epoch, Occurrences: []occurrence{}, pos: pos, split: d.Split.Name}
	hits, err := d.Sequence.Find(source, inSource, epoch, func(rows, of int64) bool {
		progress(rows, of)
		return ctx.Err() == nil
	})
	if err != nil {
		return nil, err
	}
	for _, hit := range hits {
		k, rank, j := d.Sequence.BatchOf(hit.Row)
		f.Occurrences = append(f.Occurrences, occurrence{
			Batch: k, Rank: rank, J: j, Row: hit.Row, Index: hit.Index, elements: d.Sequence.NumPyExpressions(j, hit.Index),
		})
	}
	if ctx.Err() != nil {
		return nil, command.ErrInterrupted
	}
	if len(hits) == 0 && d.Sequence.LongDocuments() != sampler.Cut {
		f.Reason, err = d.whyLeftOut(source, inSource)
	}
	return f, err
}

// whyLeftOut says why no row has the token at pos of a source. It returns an empty string unless
// its document is longer than a row.
func (d *Dataset) whyLeftOut(source int, pos int64) (string, error) {
	documents := d.mains[source].Documents()
	number, err := documents.NumberAt(pos)
	if err != nil {
		return "", err
	}
	bounds := make([]int64, 2) // start and end of the document; the first one starts at 0
	err = documents.Ends(max(number-1, 0), bounds[1-min(number, 1):])
	n, row := bounds[1]-bounds[0], int64(d.Sequence.BlockSize)+1
	switch {
	case err != nil || n <= row:
		return "", err
	case d.Sequence.LongDocuments() == sampler.Drop:
		return fmt.Sprintf("document %d has %d tokens, more than a row of %d, so too_long = %q leaves it out", number, n, row, sampler.Drop), nil
	}
	return fmt.Sprintf("document %d has %d tokens, of which only the first %d are read", number, n, row), nil
}

// Print writes f in human-readable form.
func (f *FoundToken) Print(out io.Writer) {
	printable.Fprintf(out, "token %d of %s, number %d of split %s, in epoch %d:\n", f.Index, f.File, f.pos, f.split, f.Epoch)
	for _, found := range f.Occurrences {
		fmt.Fprintf(out, "  batch %d of rank %d: %s, row number %d\n", found.Batch, found.Rank, strings.Join(found.elements, " and "), found.Row)
	}
	if len(f.Occurrences) == 0 {
		fmt.Fprintln(out, strings.TrimSuffix("  in no batch: "+f.Reason, ": "))
	}
}
