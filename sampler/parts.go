package sampler

import (
	"fmt"
	"slices"

	"batchfs/cache/array"
)

// A part is one array of a batch.
type part struct {
	name   string
	dtype  array.DType
	of     computed // what it computes, or copied
	column int      // of a copied part: the array of the source, 0 for the main one
	first  int      // index in the row of the first number it takes
	shape  []int    // of what it takes of a row
	masked bool     // an element that is not of the document of the one before is maskedTarget
	filler int64    // what fills a row up behind its tokens

	len     int       // numbers it takes of a row
	size    int       // bytes of a number, of dtype
	offset  int       // of the array in the batch, in bytes
	convert converter // to dtype, of a copied part
}

// A computed is what a part holds that is in no file.
type computed uint8

const (
	copied        computed = iota
	documentEnds           // where the documents of x end: 0, the index behind the last token of each, and T up to the end
	documentIndex          // of each token of x, its index in its document, or in the row where that begins before
	tokensOfRow            // how many x of the row are tokens; the others fill it up
	sourceOfRow            // the number of the row's source
)

// maskedTarget is the target that PyTorch's cross entropy leaves out, unless it is told otherwise.
const maskedTarget = -100

// parts are the arrays of a batch. Nothing else knows which arrays there are.
type parts struct {
	list     []part
	batch    array.Batch
	columns  []column // of the source
	computed bool     // putRow has numbers to put
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

// newParts needs the arrays of one of the sources, which are alike.
func newParts(s *Settings, arrays []Array, sources int) (parts, error) {
	var all parts
	for _, a := range arrays {
		all.columns = append(all.columns, columnOf(a))
		if n := len(a.Axes()); n > MaxAxes {
			return all, fmt.Errorf("%s: elements with %d axes; at most %d can be served", a.Extents()[0].Name, n, MaxAxes)
		}
	}
	if stored := all.columns[0].stored; stored != s.DType && !(stored.IsInteger() && s.DType.IsInteger()) {
		return all, fmt.Errorf("numbers of dtype %s cannot be served as %s; leave dtype out, or set it to native", stored, s.DType)
	}
	all.list = s.mainParts(arrays[0].Axes())
	main := len(all.list)
	beside := s.arrayParts(arrays, all.columns)
	if s.Documents {
		beside = append(beside,
			part{name: "cu_seqlens", dtype: array.Int32, of: documentEnds, shape: []int{s.BlockSize + 1}},
			part{name: "positions", dtype: array.Int32, of: documentIndex, shape: []int{s.BlockSize}})
	}
	if s.ofSegments() {
		beside = append(beside, part{name: "lengths", dtype: array.Int32, of: tokensOfRow})
	}
	if sources > 1 {
		beside = append(beside, part{name: "source", dtype: array.Int16, of: sourceOfRow})
	}
	// So that each number lies at a multiple of its size, where B*T is even.
	slices.SortStableFunc(beside, func(a, b part) int { return b.dtype.Size() - a.dtype.Size() })
	all.list = append(all.list, beside...)
	return all, all.lay(s.BatchSize, main)
}

func (s *Settings) mainParts(axes []int) []part {
	tokens := func(name string, first, n int) part {
		return part{name: name, dtype: s.DType, first: first, shape: []int{n}, filler: int64(s.EOT)}
	}
	switch s.Layout {
	case Elements:
		return []part{{name: "rows", dtype: s.DType, shape: axes}}
	case WholeRows:
		return []part{tokens("tokens", 0, s.BlockSize+1)}
	}
	x, y := tokens("x", 0, s.BlockSize), tokens("y", 1, s.BlockSize)
	if s.MaskTargets {
		y.masked, y.filler = true, maskedTarget
	}
	return []part{x, y}
}

func (s *Settings) arrayParts(arrays []Array, columns []column) (list []part) {
	for i, b := range s.Arrays {
		p := part{name: b.Name, dtype: columns[i+1].stored, column: i + 1, shape: arrays[i+1].Axes()}
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

func (all *parts) lay(rows, main int) error {
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
		if p.of == copied {
			p.convert = newConverter(p.dtype, all.columns[p.column].stored)
		}
		all.computed = all.computed || p.of != copied
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

func (p *part) ofDocuments() bool { return p.of == documentEnds || p.of == documentIndex }

func (p *part) rowBytes() int { return p.len * p.size }

// row is the byte at which row j of the part begins in a buffer in which its batch begins at byte base.
func (p *part) row(base, j int) int { return base + p.offset + j*p.rowBytes() }
