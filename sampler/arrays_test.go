package sampler

import (
	"bytes"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
)

// numbered is an array without files: number i of it is salt+i, in the bits that the dtype has. It notes what it is asked for.
type numbered struct {
	stub
	axes  []int
	salt  int64
	zeros bool  // all numbers are 0 instead
	bytes int64 // fetched
	most  int   // of one window
}

func (n *numbered) Axes() []int { return n.axes }

func (n *numbered) Read(ws []array.Window, visit func(int, []byte) error) error {
	for i, w := range ws {
		size := w.Len * n.dtype.Size()
		n.bytes, n.most = n.bytes+int64(size), max(n.most, size)
		raw := make([]byte, 0, size)
		for at := range int64(w.Len) {
			if n.zeros {
				raw = raw[:size]
				break
			}
			raw = appendToken(raw, n.salt+w.Start+at, n.dtype.Size())
		}
		if err := visit(i, raw); err != nil {
			return err
		}
	}
	return nil
}

// newNumbered is an array with one run of so many elements.
func newNumbered(dtype array.DType, salt, elements int64, axes ...int) *numbered {
	return &numbered{stub: stub{dtype: dtype, runs: []array.Run{{Name: "array", Len: elements}}}, axes: axes, salt: salt}
}

// numbersOf is how many numbers an element of an array has.
func numbersOf(a Array) int64 { return int64(columnOf(a).numbers) }

// Each array of a batch holds for each row the elements at the positions of the row, of whatever dtype, axes and source; rows are
// elements themselves. And however a reader cuts batches, the bytes are the same.
func TestArraysHoldTheElementsOfTheirRows(t *testing.T) {
	pick := func(dtypes []array.DType) array.DType { return dtypes[rand.IntN(len(dtypes))] }
	axes := [][]int{nil, {1}, {3}, {2, 5}, {3, 1, 2}}
	integers := slices.DeleteFunc(array.DTypes(), func(d array.DType) bool { return !d.IsInteger() })
	for round := range few(100, 1000) {
		s := Settings{Split: "train", BatchSize: 1 + rand.IntN(5), BlockSize: 1 + rand.IntN(9), DType: Native, Layout: []Layout{XY, WholeRows, Elements}[rand.IntN(3)],
			Order: []Order{Random, Shuffle, Sequential}[rand.IntN(3)], World: 1, Seed: rand.Uint64()}
		main := newNumbered(pick(integers), 0, 0)
		if s.Layout == Elements {
			main = newNumbered(pick(array.DTypes()), 0, 0, axes[rand.IntN(len(axes))]...)
		}
		var kinds []*numbered
		for i := range rand.IntN(4) {
			s.Arrays = append(s.Arrays, Beside{fmt.Sprint("beside", i), []At{AtX, AtY}[rand.IntN(2)]})
			kinds = append(kinds, newNumbered(pick(array.DTypes()), 0, 0, axes[rand.IntN(len(axes))]...))
		}
		var sources []Source
		for range 1 + rand.IntN(3) {
			n := int64(s.BlockSize + 1 + rand.IntN(100))
			like := func(a *numbered) Array { return newNumbered(a.dtype, rand.Int64(), n, a.axes...) }
			from := Source{Main: like(main)}
			for _, kind := range kinds {
				from.Beside = append(from.Beside, like(kind))
			}
			sources, s.Weights = append(sources, from), append(s.Weights, float64(1+rand.IntN(3)))
		}
		q, err := New(sources, s)
		must(t, err)

		// What the batches hold by their definition.
		var want []byte
		const batches = 3
		for k := range uint64(batches) {
			for _, a := range q.Batch().Arrays {
				for j := range s.BatchSize {
					source, start := q.Start(k, j)
					of, from, count := sources[source].Main, start, s.BlockSize
					switch i := slices.IndexFunc(s.Arrays, func(b Beside) bool { return b.Name == a.Name }); {
					case i >= 0:
						of = sources[source].Beside[i]
						if s.Layout != Elements && s.Arrays[i].At == AtY {
							from++
						}
					case a.Name == "source":
						want = appendToken(want, int64(source), 2)
						continue
					case a.Name == "y":
						from++
					case a.Name == "tokens":
						count++
					}
					if s.Layout == Elements {
						count = 1
					}
					for i := from * numbersOf(of); i < (from+int64(count))*numbersOf(of); i++ {
						want = appendToken(want, of.(*numbered).salt+i, of.DType().Size())
					}
				}
			}
		}
		got := make([]byte, len(want))
		must(t, q.Read(got, 0, 0))
		if int64(len(want)) != batches*q.Batch().Bytes() || !bytes.Equal(got, want) {
			t.Fatalf("round %d: %+v of %d sources: batches\n% x, want\n% x", round, s, len(sources), got, want)
		}
		for range 200 {
			from := rand.IntN(len(want))
			to := from + 1 + rand.IntN(min(len(want)-from, 1+rand.IntN(300)))
			part := make([]byte, to-from)
			must(t, q.Read(part, 0, int64(from)))
			if !bytes.Equal(part, want[from:to]) {
				t.Fatalf("round %d: %+v of %d sources: bytes %d to %d are % x, want % x", round, s, len(sources), from, to, part, want[from:to])
			}
		}
	}
}

// An element of many mebibytes is read for what a request shows of it, and so are many small ones, wherever the request begins.
func TestReadsFetchWhatIsShown(t *testing.T) {
	const request = 1 << 20
	for _, test := range []struct {
		axes    []int
		rows    int
		dtype   array.DType
		off, of int64 // of the requests, and how many bytes of the batch are read
	}{
		{[]int{16 << 20}, 2, array.Float32, 0, 128 << 20},      // elements of 64 MiB
		{[]int{4096, 4096}, 2, array.Float32, 1, 16 << 20},     // in the middle of numbers
		{[]int{1 << 20, 3}, 3, array.Float64, 12345, 20 << 20}, // over the ends of elements
		{[]int{1000, 1000}, 2, array.Uint8, 0, 2e6},            // of single bytes
		{[]int{8}, 1 << 20, array.Float16, 3, 8 << 20},         // small ones
	} {
		from := newNumbered(test.dtype, 0, 1<<22, test.axes...)
		from.zeros = true
		q, err := New([]Source{{Main: from}}, Settings{Split: "train", BatchSize: test.rows, DType: Native, Layout: Elements, Order: Shuffle, World: 1})
		must(t, err)
		dst := make([]byte, request)
		for off := test.off; off < test.of; off += request {
			must(t, q.Read(dst[:min(request, test.of-off)], 0, off))
		}
		read := test.of - test.off
		rowsRead := read/q.Batch().RowBytes(0) + 1
		if slack := (2*read/request + 2*rowsRead + 2) * 8; from.bytes > read+slack || from.most > request+16 {
			t.Errorf("%v: %d bytes are fetched for %d, %d at once", test.axes, from.bytes, read, from.most)
		}
	}
}

// One small array costs its own elements: of the others nothing is read.
func TestOneArrayReadsItsOwn(t *testing.T) {
	var sources []Source
	var all []*numbered
	for range 2 {
		tokens, mask := newNumbered(array.Uint16, 0, 1e6), newNumbered(array.Uint8, 0, 1e6)
		all = append(all, tokens, mask)
		sources = append(sources, Source{Main: tokens, Beside: []Array{mask}})
	}
	q, err := New(sources, Settings{Split: "train", BatchSize: 4, BlockSize: 1000, DType: Native, Layout: XY, Order: Random, World: 1,
		Weights: []float64{1, 1}, Arrays: []Beside{{"mask", AtY}}})
	must(t, err)
	for _, test := range []struct {
		name   string
		tokens int64 // bytes fetched of them
		mask   int64
	}{{"source", 0, 0}, {"mask", 0, 4000}, {"x", 8000, 0}} {
		for _, a := range all {
			a.bytes = 0
		}
		a := q.Batch().Arrays[slices.IndexFunc(q.Batch().Arrays, func(a array.Array) bool { return a.Name == test.name })]
		must(t, q.Read(make([]byte, a.Bytes()), 5, a.Offset))
		if tokens, mask := all[0].bytes+all[2].bytes, all[1].bytes+all[3].bytes; tokens != test.tokens || mask != test.mask {
			t.Errorf("%s: %d bytes of tokens and %d of masks are read, want %d and %d", test.name, tokens, mask, test.tokens, test.mask)
		}
	}
}

// Every pair of integer dtypes, with the numbers at the limits of each, is as arithmetic says: what the dtype cannot hold is told.
func TestConvertEveryPair(t *testing.T) {
	integers := slices.DeleteFunc(array.DTypes(), func(d array.DType) bool { return !d.IsInteger() })
	limits := func(d array.DType) (least, most *big.Int) {
		bits := uint(8 * d.Size())
		if strings.HasPrefix(string(d), "u") {
			return big.NewInt(0), new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), bits), big.NewInt(1))
		}
		half := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return new(big.Int).Neg(half), new(big.Int).Sub(half, big.NewInt(1))
	}
	var edges []*big.Int
	for _, d := range integers {
		least, most := limits(d)
		for _, n := range []int64{-1, 0, 1} {
			edges = append(edges, new(big.Int).Add(least, big.NewInt(n)), new(big.Int).Add(most, big.NewInt(n)))
		}
	}
	holds := func(d array.DType, n *big.Int) bool {
		least, most := limits(d)
		return n.Cmp(least) >= 0 && n.Cmp(most) <= 0
	}
	// bits are a number's, in two's complement.
	bits := func(n *big.Int) int64 {
		return int64(new(big.Int).And(n, new(big.Int).SetUint64(1<<64-1)).Uint64())
	}
	for _, from := range integers {
		numbers := slices.DeleteFunc(slices.Clone(edges), func(n *big.Int) bool { return !holds(from, n) })
		for _, to := range integers {
			for round := range 200 {
				n, most := 1+rand.IntN(40), len(numbers)
				if round < len(numbers) { // each alone too
					n, most = 1, 1
				}
				var raw, want []byte
				bad := -1
				for i := range n {
					number := numbers[(round+rand.IntN(most))%len(numbers)]
					raw, want = appendToken(raw, bits(number), from.Size()), appendToken(want, bits(number), to.Size())
					if bad < 0 && !holds(to, number) {
						bad = i
					}
				}
				odd := rand.IntN(8) // numbers need not be aligned
				src, dst := append(make([]byte, odd), raw...)[odd:], make([]byte, odd+len(want))[odd:]
				if got := convert(dst, src, to, from); got != bad || bad < 0 && !bytes.Equal(dst, want) {
					t.Fatalf("%s to %s: % x: number %d does not fit, want %d; % x, want % x", from, to, raw, got, bad, dst, want)
				}
			}
		}
	}
}

// What no file can hold is refused in words: no size wraps.
func TestNewRefusesArrays(t *testing.T) {
	s := Settings{Split: "train", BatchSize: MaxRows, BlockSize: 8, DType: Native, Layout: Elements, Order: Random, World: 1}
	many := slices.Repeat([]int{1}, MaxAxes)
	for _, test := range []struct {
		main, beside Array
		want         string
	}{
		{newNumbered(array.Float64, 0, 1, 1<<20, 1<<20), nil, "a batch of 16777216 rows would be larger than 4611686018427387904 bytes, which no file is; set batch_size to fewer"},
		{newNumbered(array.Uint8, 0, 1), newNumbered(array.Float64, 0, 1, 1<<40), "larger than"},
		{newNumbered(array.Uint8, 0, 1, many...), newNumbered(array.Uint8, 0, 1, many...), ""},
		{newNumbered(array.Uint8, 0, 1, append(many, 1)...), nil, "array: elements with 30 axes; at most 29 can be served"},
		{newNumbered(array.Uint8, 0, 1), newNumbered(array.Uint8, 0, 1, append(many, 1)...), "at most 29 can be served"},
		{newNumbered(array.Uint8, 0, 1), newNumbered(array.Uint8, 0, 2), "array has 2 elements, but there are 1 in array"},
	} {
		from, s := Source{Main: test.main}, s
		if test.beside != nil {
			from.Beside, s.Arrays = []Array{test.beside}, []Beside{{"beside", AtY}}
		}
		_, err := New([]Source{from}, s)
		if err == nil && test.want != "" || err != nil && (test.want == "" || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v and %v: error %v, want %q", test.main.Axes(), test.beside, err, test.want)
		}
	}
}
