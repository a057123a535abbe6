package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"batchfs/internal/jsontext"
	"batchfs/internal/printable"
)

// Found says which batches of an epoch hold a token.
type Found struct {
	File  jsontext.String `json:"file"`  // that the token is in
	Index int64           `json:"index"` // of the token in the file
	Epoch uint64          `json:"epoch"`
	Finds []find          `json:"finds"`

	pos   int64  // of the token in the split
	split string // its name
}

type find struct {
	Batch uint64 `json:"batch"`
	Rank  int    `json:"rank"`
	J     int    `json:"j"`     // row of the batch
	Row   uint64 `json:"row"`   // its global number
	Index int    `json:"index"` // of the token in the row, from 0 to T

	elements []string
}

// Find looks for the batches of an epoch that hold a token, the one at pos among those of all sources, one source after the
// other. It calls progress now and then with how many rows of how many it has looked at. It fails if there is no token at pos,
// or if ctx is cancelled.
func (d *Dataset) Find(ctx context.Context, pos int64, epoch uint64, progress func(rows, of int64)) (*Found, error) {
	if pos < 0 || pos >= d.Len() {
		return nil, fmt.Errorf("--find: must be from 0 to %d, the last token of the split (got %d)", d.Len()-1, pos)
	}
	source, in := 0, pos
	for in >= d.mains[source].Len() {
		in -= d.mains[source].Len()
		source++
	}
	at := d.mains[source].Locate(in)
	f := &Found{File: jsontext.String(at.Path), Index: at.Index, Epoch: epoch, Finds: []find{}, pos: pos, split: d.Split.Name}
	hits, err := d.Sequence.Find(source, in, epoch, func(rows, of int64) bool {
		progress(rows, of)
		return ctx.Err() == nil
	})
	if err != nil {
		return nil, err
	}
	for _, hit := range hits {
		k, rank, j := d.Sequence.BatchOf(hit.Row)
		f.Finds = append(f.Finds, find{
			Batch: k, Rank: rank, J: j, Row: hit.Row, Index: hit.Index, elements: d.Sequence.Elements(j, hit.Index),
		})
	}
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	return f, nil
}

// JSON is for programs.
func (f *Found) JSON() []byte { return indented(f) }

// Print writes f for people.
func (f *Found) Print(out io.Writer) {
	printable.Fprintf(out, "token %d of %s, number %d of split %s, in epoch %d:\n", f.Index, f.File, f.pos, f.split, f.Epoch)
	for _, found := range f.Finds {
		fmt.Fprintf(out, "  batch %d of rank %d: %s, row number %d\n", found.Batch, found.Rank, strings.Join(found.elements, " and "), found.Row)
	}
	if len(f.Finds) == 0 {
		fmt.Fprintln(out, "  in no batch")
	}
}
