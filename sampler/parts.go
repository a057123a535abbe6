package sampler

import (
	"fmt"

	"batchfs/cache/array"
)

// A part is one array of a batch: what it takes of each row. Its shape is (B, len).
type part struct {
	name   string
	dtype  array.DType
	first  int // index in the row of the first token it takes
	len    int // tokens it takes of a row
	size   int // bytes of a token, of dtype
	offset int // of the array in the batch, in bytes
}

// parts are the arrays of a batch, one after the other. Nothing else knows which arrays there are.
type parts struct {
	list  []part
	rows  int         // B
	batch array.Batch // the parts as others see them
}

// partsOf are the arrays of a layout.
func partsOf(s Settings) parts {
	if s.Layout == WholeRows {
		return newParts(s.BatchSize, 1, part{name: "tokens", dtype: s.DType, first: 0, len: s.BlockSize + 1})
	}
	return newParts(s.BatchSize, 2,
		part{name: "x", dtype: s.DType, first: 0, len: s.BlockSize},
		part{name: "y", dtype: s.DType, first: 1, len: s.BlockSize})
}

// newParts lays parts, of which name, dtype, first and len are set, one after the other. The first main of them are the main
// arrays of the batch.
func newParts(rows, main int, list ...part) parts {
	var arrays []array.Array
	for _, p := range list {
		arrays = append(arrays, array.Array{Name: p.name, DType: p.dtype, Shape: []int{rows, p.len}})
	}
	batch := array.NewBatch(main, arrays...)
	for i, a := range batch.Arrays {
		list[i].size, list[i].offset = a.DType.Size(), int(a.Offset)
	}
	return parts{list: list, rows: rows, batch: batch}
}

// rowBytes is the bytes that the part takes of a row.
func (p *part) rowBytes() int { return p.len * p.size }

// row is the byte at which row j of the part begins in a buffer in which its batch begins at byte base.
func (p *part) row(base, j int) int { return base + p.offset + j*p.rowBytes() }

// An Element is one number of a batch.
type Element struct {
	Array  string // its name
	Row    int    // of the array, from 0 to B-1
	Column int
}

// String is the element as NumPy indexes it: "x[3, 17]".
func (e Element) String() string { return fmt.Sprintf("%s[%d, %d]", e.Array, e.Row, e.Column) }

// elements are where token index of row j stands.
func (all parts) elements(j, index int) (list []Element) {
	for _, p := range all.list {
		if column := index - p.first; column >= 0 && column < p.len {
			list = append(list, Element{p.name, j, column})
		}
	}
	return list
}
