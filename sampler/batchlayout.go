package sampler

import (
	"fmt"
	"slices"

	"batchfs/cache/array"
)

// A batchArray is one array of a batch.
type batchArray struct {
	name        string
	dtype       array.DType
	content     contentKind
	column      int   // number of the copied array in the source; 0: main
	firstNumber int   // index of its first number in the source's row
	shape       []int // shape of a row
	masked      bool  // whether y is IgnoreIndex, the padding, where a document begins
	maskColumn  int   // number of the array in the source whose zeros mask y; 0: none
	padding     int64

	rowNumbers  int
	numberBytes int
	offset      int       // bytes from the start of the batch
	convert     converter // converts copied numbers to dtype
}

// A contentKind says what an array holds.
type contentKind uint8

const (
	contentFile      contentKind = iota // numbers from a file
	contentCuSeqlens                    // 0, ends of documents in x, then T until the row is full
	contentPositions                    // index in the document's part of the row
	contentNumbers                      // number of each document in x, then -1 for the rest
	contentLengths                      // tokens in x; the rest is padding
	contentSource                       // number of the source
)

// A batchLayout is the list of arrays in a batch.
type batchLayout struct {
	arrays     []batchArray
	batch      array.Batch
	columns    []sourceColumn
	hasDerived bool // whether putDerived has numbers to write
}

// A sourceColumn describes an array of a source. All sources of a mixture have the same columns.
type sourceColumn struct {
	dtype          array.DType // dtype in the files
	numberBytes    int
	elementNumbers int
}

func (c sourceColumn) formatNumber(raw []byte, i int) string {
	return c.dtype.Text(c.dtype.Bits(raw[i*c.numberBytes:]))
}

func columnOf(a SourceArray) sourceColumn {
	n := 1
	for _, axis := range a.Axes() {
		n *= axis
	}
	return sourceColumn{a.DType(), a.DType().Size(), n}
}

// newBatchLayout lays out a batch with the arrays of any source: all sources have the same dtypes
// and shapes.
func newBatchLayout(s *Settings, arrays []SourceArray) (batchLayout, error) {
	var l batchLayout
	for _, a := range arrays {
		l.columns = append(l.columns, columnOf(a))
		if n := len(a.Axes()); n > MaxAxes {
			return l, fmt.Errorf("%s: elements with %d axes; at most %d can be served", a.Extents()[0].Name, n, MaxAxes)
		}
	}
	if stored := l.columns[0].dtype; stored != s.DType && !(stored.IsInteger() && s.DType.IsInteger()) {
		return l, fmt.Errorf("numbers of dtype %s cannot be served as %s; leave dtype out, or set it to native", stored, s.DType)
	}
	l.arrays = s.mainArrays(arrays[0].Axes())
	main := len(l.arrays)
	others := s.alignedArrays(arrays, l.columns)
	if s.Documents {
		others = append(others,
			batchArray{name: "cu_seqlens", dtype: array.Int32, content: contentCuSeqlens, shape: []int{s.BlockSize + 1}},
			batchArray{name: "positions", dtype: array.Int32, content: contentPositions, shape: []int{s.BlockSize}})
	}
	if s.DocumentNumbers {
		others = append(others, batchArray{name: "document_numbers", dtype: array.Int64, content: contentNumbers, shape: []int{s.BlockSize}})
	}
	if s.hasDocumentRows() {
		others = append(others, batchArray{name: "lengths", dtype: array.Int32, content: contentLengths})
	}
	if s.mixed() {
		others = append(others, batchArray{name: "source", dtype: array.Int16, content: contentSource})
	}
	// Larger numbers come first, so that each is aligned if B*T is even.
	slices.SortStableFunc(others, func(a, b batchArray) int { return b.dtype.Size() - a.dtype.Size() })
	l.arrays = append(l.arrays, others...)
	return l, l.assignOffsets(s.BatchSize, main)
}

func (s *Settings) mainArrays(axes []int) []batchArray {
	tokens := func(name string, first, n int) batchArray {
		return batchArray{name: name, dtype: s.DType, firstNumber: first, shape: []int{n}, padding: int64(s.padding())}
	}
	switch s.Layout {
	case Rows:
		return []batchArray{{name: "rows", dtype: s.DType, shape: axes}}
	case Tokens:
		return []batchArray{tokens("tokens", 0, s.BlockSize+1)}
	}
	x, y := tokens("x", 0, s.BlockSize), tokens("y", 1, s.BlockSize)
	if s.MaskTargets {
		y.masked, y.padding, y.maskColumn = true, s.IgnoreIndex, s.maskArrayIndex()+1
	}
	return []batchArray{x, y}
}

func (s *Settings) alignedArrays(arrays []SourceArray, columns []sourceColumn) (list []batchArray) {
	for i, b := range s.Arrays {
		a := batchArray{name: b.Name, dtype: columns[i+1].dtype, column: i + 1, shape: arrays[i+1].Axes()}
		if s.Layout != Rows {
			a.shape = slices.Insert(slices.Clone(a.shape), 0, s.BlockSize)
			if b.At == AtY {
				a.firstNumber = columns[i+1].elementNumbers
			}
		}
		list = append(list, a)
	}
	return list
}

// maxBytes limits the size of a batch, so that every offset fits in an int64.
const maxBytes = 1 << 62

func (l *batchLayout) assignOffsets(rows, mainArrays int) error {
	var arrays []array.Descriptor
	bytes := 0.0 // approximate, because the size may overflow an integer
	for i := range l.arrays {
		a := &l.arrays[i]
		a.rowNumbers, a.numberBytes = 1, a.dtype.Size()
		arrayBytes := float64(rows * a.numberBytes)
		for _, axis := range a.shape {
			a.rowNumbers *= axis
			arrayBytes *= float64(axis)
		}
		bytes += arrayBytes
		if a.content == contentFile {
			a.convert = newConverter(a.dtype, l.columns[a.column].dtype)
		}
		l.hasDerived = l.hasDerived || a.content != contentFile
		arrays = append(arrays, array.Descriptor{Name: a.name, DType: a.dtype, Shape: slices.Insert(slices.Clone(a.shape), 0, rows)})
	}
	if bytes > maxBytes {
		return fmt.Errorf("a batch of %d rows would be larger than %d bytes, too large for a file; reduce batch_size", rows, int64(maxBytes))
	}
	l.batch = array.NewBatch(mainArrays, arrays...)
	for i, a := range l.batch.Arrays {
		l.arrays[i].offset = int(a.Offset)
	}
	return nil
}

func (a *batchArray) isFromDocuments() bool {
	return a.content == contentCuSeqlens || a.content == contentPositions
}

func (a *batchArray) rowBytes() int { return a.rowNumbers * a.numberBytes }

// rowOffset returns the offset of row j in a buffer whose batch begins at base.
func (a *batchArray) rowOffset(base, j int) int { return base + a.offset + j*a.rowBytes() }
