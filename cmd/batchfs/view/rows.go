package view

import (
	"math"
	"slices"
	"unicode/utf8"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/internal/jsonbytes"
	"batchfs/sampler"
)

// Limits of one response.
const (
	maxNumbers = 1 << 19 // numbers per array, in all rows
	maxTokens  = 1 << 13 // tokens per row
)

type row struct {
	Epoch    uint64             `json:"epoch"`
	Source   int                `json:"source"`
	Stage    int                `json:"stage"`
	Segments []segment          `json:"segments"`
	Begins   []int              `json:"begins"`  // where documents begin, if an index says so
	Numbers  []int64            `json:"numbers"` // numbers of the documents that begin there
	Text     []jsonbytes.String `json:"text"`    // one text per token of x, and that of the last y
	Arrays   map[string][]byte  `json:"arrays"`  // bytes of each array of the batch
}

// A segment is a run of tokens that are consecutive both in the row and in their file.
type segment struct {
	At       int              `json:"at"` // index in the row
	Len      int              `json:"len"`
	Document int64            `json:"document"` // number; -1 if unknown
	Inserted bool             `json:"inserted"` // whether bos replaces the first token
	File     jsonbytes.String `json:"file"`
	Start    int64            `json:"start"` // index in the file
	ID       string           `json:"id"`    // of the document; empty if it has none
}

// rows returns up to q["n"] rows of batch q["k"], beginning with row q["from"], and up to q["len"]
// tokens of each, beginning with token q["at"].
func (s *sequence) rows(q map[string]int64) (list []row, err error) {
	from, at, tokens := q["from"], min(q["at"], math.MaxInt32), max(min(q["len"], maxTokens), 1)
	for j := from; j < int64(s.data.Sequence.BatchSize) && j-from < min(q["n"], maxNumbers/tokens); j++ {
		row, err := s.row(uint64(q["k"]), int(j), int(at), int(tokens))
		if err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, nil
}

func (s *sequence) row(k uint64, j, at, n int) (r row, err error) {
	q := s.data.Sequence
	r = row{Epoch: q.Epoch(k, j), Stage: q.PhaseOf(k, j), Arrays: map[string][]byte{}}
	source, parts, err := q.Segments(k, j)
	if err != nil {
		return r, err
	}
	r.Source = source
	for _, p := range parts {
		l := s.data.Arrays()[source][0].Locate(p.Start)
		id, err := s.ids.Of(source, p.Document)
		if err != nil {
			return r, err
		}
		r.Segments = append(r.Segments, segment{At: p.At, Len: p.Len, Document: p.Document, Inserted: p.Inserted,
			File: jsonbytes.String(l.Path), Start: l.Index, ID: id})
	}
	if documents := s.data.Arrays()[source][0].Documents(); documents != nil && q.Rows == sampler.Windows {
		if r.Begins, r.Numbers, err = begins(documents, parts[0].Start, at, min(n, parts[0].Len-at)); err != nil {
			return r, err
		}
	}
	arrays := q.Batch().Arrays
	for i, a := range arrays {
		if r.Arrays[a.Name], err = readRow(q, i, k, j, at, n); err != nil {
			return r, err
		}
	}
	if decode := s.decoders[r.Source]; decode != nil {
		main, dtype := r.Arrays[arrays[0].Name], arrays[0].DType
		if y := r.Arrays["y"]; q.Layout == sampler.XY && at+n > q.BlockSize && len(y) > 0 {
			if last := y[len(y)-dtype.Size():]; dtype.Text(dtype.Bits(last))[0] != '-' {
				main = slices.Concat(main, last)
			}
		}
		r.Text = tokenTexts(decode, dtype, main)
	}
	return r, nil
}

// begins returns at which of the indexes at+1 to at+n-1 of a window documents begin, and their
// numbers. The window itself begins at position start of the source.
func begins(documents *cache.Documents, start int64, at, n int) (list []int, numbers []int64, err error) {
	list, numbers = []int{}, []int64{}
	if n < 2 {
		return list, numbers, nil
	}
	// One pass is enough, unless there are empty documents.
	for pos, stop := start+int64(at), start+int64(at+n); ; {
		first, err := documents.NumberAt(pos)
		ends := make([]int64, min(documents.Count()-first, int64(n)))
		if err == nil {
			err = documents.Ends(first, ends)
		}
		if err != nil {
			return nil, nil, err
		}
		for i, end := range ends {
			if end == pos { // the document is empty
				continue
			}
			if len(numbers) < len(list) {
				numbers = append(numbers, first+int64(i))
			}
			if end >= stop {
				return list, numbers, nil
			}
			list, pos = append(list, int(end-start)), end
		}
	}
}

// readRow returns up to n numbers of row j of array i of batch k, beginning with number at.
func readRow(q *sampler.Sequence, i int, k uint64, j, at, n int) ([]byte, error) {
	batch := q.Batch()
	a, size, width := batch.Arrays[i], batch.RowBytes(i), batch.Arrays[i].DType.Size()
	if len(a.Shape) == 1 {
		at = 0
	}
	from := int64(at) * int64(width)
	raw := make([]byte, max(min(int64(n*width), size-from), 0))
	if len(raw) == 0 {
		return nil, nil
	}
	return raw, q.Read(raw, k, a.Offset+int64(j)*size+from)
}

// tokenTexts returns the texts of tokens. A character that spans several tokens is in the text of
// the first. Bytes that are not UTF-8 stay unchanged.
func tokenTexts(decode decoder, dtype array.DType, raw []byte) (list []jsonbytes.String) {
	var all []byte
	var ends []int
	for ; len(raw) > 0; raw = raw[dtype.Size():] {
		all = append(all, decode(dtype.Bits(raw))...)
		ends = append(ends, len(all))
	}
	at := 0
	for _, end := range ends {
		from := at
		for at < end {
			_, size := utf8.DecodeRune(all[at:])
			at += size
		}
		list = append(list, jsonbytes.String(all[from:at]))
	}
	return list
}
