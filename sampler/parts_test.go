package sampler

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
)

// with is q with other parts, of which the first two are main arrays.
func (q *Sequence) with(list ...part) *Sequence {
	n := *q
	n.parts = parts{list: slices.Clone(list), columns: q.parts.columns}
	n.parts.lay(q.BatchSize, 2)
	return &n
}

// A batch has the arrays that its list of parts says, whatever they take of a row: here also two behind x and y, of other dtypes
// and other spans of the row, the first of them at an offset that is no multiple of its dtype's size.
func TestMadeUpArrays(t *testing.T) {
	const b, T = 3, 3
	more := []part{
		{name: "x", dtype: array.Uint16, first: 0, shape: []int{T}},
		{name: "y", dtype: array.Uint16, first: 1, shape: []int{T}},
		{name: "inner", dtype: array.Int64, first: 1, shape: []int{2}},
		{name: "last", dtype: array.Uint32, first: T, shape: []int{1}},
	}
	list := []array.Array{
		{Name: "x", DType: array.Uint16, Shape: []int{b, T}, Offset: 0},
		{Name: "y", DType: array.Uint16, Shape: []int{b, T}, Offset: 18},
		{Name: "inner", DType: array.Int64, Shape: []int{b, 2}, Offset: 36},
		{Name: "last", DType: array.Uint32, Shape: []int{b, 1}, Offset: 84},
	}
	for _, sources := range [][][]int64{{{100, 9, 50}}, {{40}, {9, 30}}} {
		tokens := stubs(array.Uint16, sources...)
		s := Settings{Split: "train", BatchSize: b, BlockSize: T, DType: array.Uint16, Layout: XY, Order: Shuffle, World: 1,
			Weights: slices.Repeat([]float64{1}, len(sources))}
		q, err := New(tokens, s)
		must(t, err)
		for n := 2; n <= len(more); n++ {
			q := q.with(more[:n]...)
			if got := q.Batch().Arrays; !reflect.DeepEqual(got, list[:n]) {
				t.Fatalf("arrays %+v, want %+v", got, list[:n])
			}
			if q.Batch().MainBytes() != 36 || !slices.Equal(q.Batch().Stack().Shape, []int{2, b, T}) {
				t.Fatalf("main arrays of %+v", q.Batch())
			}
			var all []byte
			const batches = 2
			for k := range uint64(batches) {
				for _, p := range more[:n] {
					for j := range b {
						for i := range p.len {
							all = appendToken(all, position(tokens, q, k, j)+int64(p.first+i), p.dtype.Size())
						}
					}
				}
			}
			dst := make([]byte, len(all))
			for from := range all {
				for to := from; to <= len(all); to++ {
					clear(dst)
					must(t, q.Read(dst[from:to], 0, int64(from)))
					if !bytes.Equal(dst[from:to], all[from:to]) {
						t.Fatalf("%d arrays: bytes %d to %d are % x, want % x", n, from, to, dst[from:to], all[from:to])
					}
				}
			}
		}
	}
}

// Each array has its own dtype to overflow.
func TestMadeUpArrayOverflows(t *testing.T) {
	path := holding(t, 4, []int64{0, 1, 2, 3, 70_000})
	q := sequence(t, path, cache.Options{DType: array.Uint32}, Settings{BatchSize: 1, BlockSize: 4, DType: array.Uint32, Order: Sequential})
	q = q.with(append(slices.Clone(q.parts.list), part{name: "narrow", dtype: array.Uint16, first: 3, shape: []int{2}})...)
	dst := make([]byte, q.Batch().Bytes())
	must(t, q.Read(dst[:34], 0, 0)) // x, y, and of narrow the token that fits
	for n := 35; n <= 36; n++ {
		want := path[0] + ": token 4 is 70000, which dtype uint16 cannot hold"
		if err := q.Read(dst[:n], 0, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: error %v, want %s", n, err, want)
		}
	}
}

// Elements say where a token of a row stands: those and no others of the batch hold it.
func TestElements(t *testing.T) {
	const b, T = 3, 4
	for _, test := range []struct {
		layout      Layout
		first, last []string // elements of the tokens of row 1
	}{
		{XY, []string{"x[1, 0]"}, []string{"y[1, 3]"}},
		{WholeRows, []string{"tokens[1, 0]"}, []string{"tokens[1, 4]"}},
	} {
		q := sequence(t, files(t, 2, 13), cache.Options{DType: array.Uint16},
			Settings{BatchSize: b, BlockSize: T, Layout: test.layout, Order: Sequential})
		if first, last := fmt.Sprint(q.Elements(1, 0)), fmt.Sprint(q.Elements(1, T)); first != fmt.Sprint(test.first) || last != fmt.Sprint(test.last) {
			t.Errorf("%s: first token in %s, last in %s", test.layout, first, last)
		}
		if test.layout == XY && fmt.Sprint(q.Elements(2, 3)) != "[x[2, 3] y[2, 2]]" {
			t.Errorf("token 3 of row 2 is in %v", q.Elements(2, 3))
		}
		if got := slices.Concat(q.Elements(0, -1), q.Elements(0, T+1)); len(got) > 0 {
			t.Errorf("tokens outside the row are in %v", got)
		}
		batch, holders := read(t, q, 0), map[int64]map[Element]bool{}
		for _, a := range q.Batch().Arrays {
			for j, row := range rows(batch[a.Offset:][:a.Bytes()], a.Shape[1]) {
				for i, token := range row {
					if holders[token] == nil {
						holders[token] = map[Element]bool{}
					}
					holders[token][Element{a.Name, j, i}] = true
				}
			}
		}
		for pos := range int64(13) {
			got := map[Element]bool{}
			for _, hit := range find(t, q, 0, pos, 0, nil) {
				if k, _, j := q.BatchOf(hit.Row); k == 0 {
					for _, e := range q.Elements(j, hit.Index) {
						got[e] = true
					}
				}
			}
			if !reflect.DeepEqual(got, holders[pos]) {
				t.Errorf("%s: token %d is said to be in %v, and is in %v", test.layout, pos, got, holders[pos])
			}
		}
	}
}
