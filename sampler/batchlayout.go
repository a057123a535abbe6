package sampler

import (
	"fmt"
	"slices"

	"batchfs/cache/array"
)

// A batchArray is one array of a batch.
type batchArray struct {
	name    string
	dtype   array.DType
	derived derivation // what it computes, or copied
	column  int        // of a copied part: the array of the source, 0 for the main one
	first   int        // index in the row of the first number it takes
	shape   []int      // of what it takes of a row
	masked  bool       // an element that is not of the document of the one before is maskedTarget
	filler  int64      // what fills a row up behind its tokens

	len     int       // numbers it takes of a row
	size    int       // bytes of a number, of dtype
	offset  int       // of the array in the batch, in bytes
	convert converter // to dtype, of a copied part
}

// A derivation is what an array holds that is in no file.
type derivation uint8

const (
	copied        derivation = iota
	documentEnds             // where the documents of x end: 0, the index behind the last token of each, and T up to the end
	documentIndex            // of each token of x, its index in its document, or in the row where that begins before
	tokensOfRow              // how many x of the row are tokens; the others fill it up
	sourceOfRow              // the number of the row's source
)

// maskedTarget is the target that PyTorch's cross entropy leaves out, unless it is told otherwise.
const maskedTarget = -100

// A batchLayout has the arrays of a batch. Nothing else knows which arrays there are.
type batchLayout struct {
	list    []batchArray
	batch   array.Batch
	columns []column // of the source
	derives bool     // putRow has numbers to put
}

// A column is an array of a source, as all sources have it.
type column struct {
	stored  array.DType
	width   int // bytes of a number
	numbers int // of an element
}

// text is number i of raw in words.
func (c column) text(raw []byte, i int) string { return c.stored.Text(c.stored.Bits(raw[i*c.width:])) }

func columnOf(a Array) column {
	n := 1
	for _, axis := range a.Axes() {
		n *= axis
	}
	return column{a.DType(), a.DType().Size(), n}
}

// newBatchLayout needs the arrays of one of the sources, which are alike.
func newBatchLayout(s *Settings, arrays []Array, sources int) (batchLayout, error) {
	var all batchLayout
	for _, a := range arrays {
		all.columns = append(all.columns, columnOf(a))
		if n := len(a.Axes()); n > MaxAxes {
			return all, fmt.Errorf("%s: elements with %d axes; at most %d can be served", a.Extents()[0].Name, n, MaxAxes)
		}
	}
	if stored := all.columns[0].stored; stored != s.DType && !(stored.IsInteger() && s.DType.IsInteger()) {
		return all, fmt.Errorf("numbers of dtype %s cannot be served as %s; leave dtype out, or set it to native", stored, s.DType)
	}
	all.list = s.mainArrays(arrays[0].Axes())
	main := len(all.list)
	beside := s.alignedArrays(arrays, all.columns)
	if s.Documents {
		beside = append(beside,
			batchArray{name: "cu_seqlens", dtype: array.Int32, derived: documentEnds, shape: []int{s.BlockSize + 1}},
			batchArray{name: "positions", dtype: array.Int32, derived: documentIndex, shape: []int{s.BlockSize}})
	}
	if s.ofSegments() {
		beside = append(beside, batchArray{name: "lengths", dtype: array.Int32, derived: tokensOfRow})
	}
	if sources > 1 {
		beside = append(beside, batchArray{name: "source", dtype: array.Int16, derived: sourceOfRow})
	}
	// So that each number lies at a multiple of its size, where B*T is even.
	slices.SortStableFunc(beside, func(a, b batchArray) int { return b.dtype.Size() - a.dtype.Size() })
	all.list = append(all.list, beside...)
	return all, all.lay(s.BatchSize, main)
}

func (s *Settings) mainArrays(axes []int) []batchArray {
	tokens := func(name string, first, n int) batchArray {
		return batchArray{name: name, dtype: s.DType, first: first, shape: []int{n}, filler: int64(s.EOT)}
	}
	switch s.Layout {
	case Elements:
		return []batchArray{{name: "rows", dtype: s.DType, shape: axes}}
	case WholeRows:
		return []batchArray{tokens("tokens", 0, s.BlockSize+1)}
	}
	x, y := tokens("x", 0, s.BlockSize), tokens("y", 1, s.BlockSize)
	if s.MaskTargets {
		y.masked, y.filler = true, maskedTarget
	}
	return []batchArray{x, y}
}

func (s *Settings) alignedArrays(arrays []Array, columns []column) (list []batchArray) {
	for i, b := range s.Arrays {
		p := batchArray{name: b.Name, dtype: columns[i+1].stored, column: i + 1, shape: arrays[i+1].Axes()}
		if s.Layout != Elements {
			p.shape = slices.Insert(slices.Clone(p.shape), 0, s.BlockSize)
			if b.At == AtY {
				p.first = columns[i+1].numbers
			}
		}
		list = append(list, p)
	}
	return list
}

// maxBytes bounds the size of a batch, so that each byte has an offset.
const maxBytes = 1 << 62

func (all *batchLayout) lay(rows, main int) error {
	var arrays []array.Array
	bytes := 0.0 // about, as there may be too many for an integer
	for i := range all.list {
		p := &all.list[i]
		p.len, p.size = 1, p.dtype.Size()
		bytesOfPart := float64(rows * p.size)
		for _, axis := range p.shape {
			p.len *= axis
			bytesOfPart *= float64(axis)
		}
		bytes += bytesOfPart
		if p.derived == copied {
			p.convert = newConverter(p.dtype, all.columns[p.column].stored)
		}
		all.derives = all.derives || p.derived != copied
		arrays = append(arrays, array.Array{Name: p.name, DType: p.dtype, Shape: slices.Insert(slices.Clone(p.shape), 0, rows)})
	}
	if bytes > maxBytes {
		return fmt.Errorf("a batch of %d rows would be larger than %d bytes, which no file is; set batch_size to fewer", rows, int64(maxBytes))
	}
	all.batch = array.NewBatch(main, arrays...)
	for i, a := range all.batch.Arrays {
		all.list[i].offset = int(a.Offset)
	}
	return nil
}

func (p *batchArray) ofDocuments() bool {
	return p.derived == documentEnds || p.derived == documentIndex
}

func (p *batchArray) rowBytes() int { return p.len * p.size }

// row is the byte at which row j of the array begins in a buffer in which its batch begins at byte base.
func (p *batchArray) row(base, j int) int { return base + p.offset + j*p.rowBytes() }
