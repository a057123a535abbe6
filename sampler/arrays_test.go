package sampler

import (
	"bytes"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"batchfs/cache/array"
	"batchfs/test/e2e"
)

// A stubArray is an array without files. Number i is salt+i, truncated to the dtype.
type stubArray struct {
	dtype   array.DType
	axes    []int
	extents []array.Extent
	vocab   int64
	salt    int64
	values  []int64 // replaces the numbers; may be nil
	zeros   bool

	mu             sync.Mutex // guards the fields below
	bytesRead      int64
	maxWindowBytes int
	mostWindows    int // most windows in one Read
}

func (s *stubArray) DType() array.DType                  { return s.dtype }
func (s *stubArray) Axes() []int                         { return s.axes }
func (s *stubArray) VocabSize() int64                    { return s.vocab }
func (s *stubArray) Extents() []array.Extent             { return s.extents }
func (s *stubArray) Locate(pos int64) array.Location     { return array.Location{Path: "stub", Index: pos} }
func (s *stubArray) Cut(pos, _ int64) (end, begin int64) { return pos, pos }

func (s *stubArray) Len() int64 {
	last := s.extents[len(s.extents)-1]
	return last.Start + last.Len
}

func (s *stubArray) Read(ws []array.Window, visit func(int, []byte) error) error {
	s.mu.Lock()
	s.mostWindows = max(s.mostWindows, len(ws))
	for _, w := range ws {
		size := w.Len * s.dtype.Size()
		s.bytesRead, s.maxWindowBytes = s.bytesRead+int64(size), max(s.maxWindowBytes, size)
	}
	s.mu.Unlock()
	for i, w := range ws {
		size := w.Len * s.dtype.Size()
		raw := make([]byte, 0, size)
		switch {
		case s.zeros:
			raw = raw[:size]
		default:
			for n := range int64(w.Len) {
				raw = appendToken(raw, s.number(w.Start+n), s.dtype.Size())
			}
		}
		if err := visit(i, raw); err != nil {
			return err
		}
	}
	return nil
}

// newNumbered returns an array with one extent.
func newNumbered(dtype array.DType, salt, elements int64, axes ...int) *stubArray {
	return &stubArray{dtype: dtype, extents: []array.Extent{{Name: "array", Len: elements}}, axes: axes, salt: salt}
}

func (s *stubArray) number(i int64) int64 {
	if s.values != nil {
		return s.values[i]
	}
	return s.salt + i
}

func numbersOf(a SourceArray) int64 { return int64(columnOf(a).elementNumbers) }

// positionOf returns the position in the source of the token at an index of a row, even if BOS
// replaces it, or -1 for padding.
func positionOf(segments []Segment, index int) int64 {
	for _, s := range segments {
		if index >= s.At && index < s.At+s.Len {
			return s.Start + int64(index-s.At)
		}
	}
	return -1
}

// expectedBatch computes batch k number by number, from the segments of its rows.
func expectedBatch(t testing.TB, q *Sequence, sources []Source, k uint64) (batch []byte) {
	T := q.BlockSize
	if q.Layout == Rows {
		T = 0
	}
	for _, a := range q.Batch().Arrays {
		put := func(v int64) { batch = appendToken(batch, v, a.DType.Size()) }
		for j := range q.BatchSize {
			source, segments, err := q.Segments(k, j)
			must(t, err)
			// Position in the source and segment number, for each index in the row.
			positions, segment, used := slices.Repeat([]int64{-1}, T+1), slices.Repeat([]int{-1}, T+1), 0
			for n, s := range segments {
				for i := range s.Len {
					positions[s.At+i], segment[s.At+i] = s.Start+int64(i), n
				}
				used = s.At + s.Len
				if s.Inserted {
					positions[s.At] = -1
				}
			}
			elements := func(from SourceArray, first, count int, filler int64) {
				n := numbersOf(from)
				for _, pos := range positions[first : first+count] {
					for c := range n {
						if pos >= 0 {
							put(from.(*stubArray).number(pos*n + c))
						} else {
							put(filler)
						}
					}
				}
			}
			begins := []int{0}
			for i := 1; i <= T; i++ {
				if segment[i] != segment[i-1] {
					begins = append(begins, i)
				}
			}
			main := sources[source].Main
			switch a.Name {
			case "x", "rows":
				elements(main, 0, max(T, 1), int64(q.padding()))
			case "tokens":
				elements(main, 0, T+1, int64(q.padding()))
			case "y":
				for i := 1; i <= T; i++ {
					isMasked := q.MaskTargets && (segment[i] != segment[i-1] || positions[i] < 0)
					if mask := q.maskArrayIndex(); mask >= 0 && !isMasked {
						isMasked = sources[source].Aligned[mask].(*stubArray).number(positions[i]) == 0
					}
					if isMasked {
						put(q.IgnoreIndex)
					} else {
						elements(main, i, 1, int64(q.padding()))
					}
				}
			case "cu_seqlens":
				for i := range T + 1 {
					put(int64(append(begins, slices.Repeat([]int{T}, T+1)...)[i]))
				}
			case "document_numbers":
				numbers := slices.Repeat([]int64{-1}, T)
				for n, begin := range begins {
					if begin < T && positionOf(segments, begin) >= 0 {
						number, err := q.sources[source].documents.NumberAt(positionOf(segments, begin))
						must(t, err)
						numbers[n] = number
					}
				}
				for _, number := range numbers {
					put(number)
				}
			case "positions":
				for i := range T {
					n, found := slices.BinarySearch(begins, i)
					if !found {
						n--
					}
					put(int64(i - begins[n]))
				}
			case "lengths":
				put(int64(min(used, T)))
			case "source":
				put(int64(source))
			default:
				i := slices.IndexFunc(q.Arrays, func(b AlignedArray) bool { return b.Name == a.Name })
				first := 0
				if q.Layout != Rows && q.Arrays[i].At == AtY {
					first = 1
				}
				elements(sources[source].Aligned[i], first, max(T, 1), 0)
			}
		}
	}
	return batch
}

// Each array of a batch follows from the segments of its rows, for every dtype, shape, kind of rows
// and mixture. Its bytes do not depend on how a reader splits its reads.
func TestBatchesAreTheirSegments(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	axes := [][]int{nil, {1}, {3}, {2, 5}, {3, 1, 2}}
	integers := slices.DeleteFunc(array.DTypes(), func(d array.DType) bool { return !d.IsInteger() })
	for round := range attempts(150, e2e.NormalOrSoak(400, 1000)) {
		s := Settings{
			Name: "train", BatchSize: 1 + r.IntN(5), BlockSize: 1 + r.IntN(30), Seed: r.Uint64(), World: 1 + r.IntN(3), DType: Native,
			Layout: []Layout{XY, Tokens, Rows}[r.IntN(3)], Order: []Order{Random, Shuffle, Sequential}[r.IntN(3)],
		}
		s.Rank = r.IntN(s.World)
		main, salt := newNumbered(integers[r.IntN(len(integers))], 0, 0), r.Int64()
		switch {
		case s.Layout == Rows:
			main = newNumbered(array.DTypes()[r.IntN(len(array.DTypes()))], 0, 0, axes[r.IntN(len(axes))]...)
		case round%2 == 0:
			main, salt = newNumbered(array.Uint32, 0, 0), 0
			s.Rows, s.EOT, s.Documents, s.DocumentNumbers = documentKinds[r.IntN(3)], uint64(r.IntN(2))*50256, r.IntN(3) > 0, r.IntN(2) == 0
			s.DType = []array.DType{array.Uint32, array.Int32, array.Int64}[r.IntN(3)]
			s.MaskTargets, s.IgnoreIndex = s.Layout == XY && s.DType != array.Uint32 && r.IntN(2) == 0, -r.Int64N(200)
			s.TooLong = []TooLong{Cut, Truncate}[r.IntN(2)]
			if r.IntN(2) == 0 {
				s.BOS = new(testBOS)
			}
		case s.Layout == XY && r.IntN(2) == 0:
			main, salt, s.DType, s.MaskTargets = newNumbered(array.Uint32, 0, 0), 0, array.Int64, true
		}
		var kinds []*stubArray
		for i := range r.IntN(4) {
			s.Arrays = append(s.Arrays, AlignedArray{fmt.Sprint("beside", i), []At{AtX, AtY}[r.IntN(2)]})
			kinds = append(kinds, newNumbered(array.DTypes()[r.IntN(len(array.DTypes()))], 0, 0, axes[r.IntN(len(axes))]...))
		}
		if s.MaskTargets && (s.Rows == "" || r.IntN(2) == 0) {
			s.Arrays, s.MaskArray = append(s.Arrays, AlignedArray{"mask", AtY}), "mask"
			kinds = append(kinds, newNumbered([]array.DType{array.Bool, array.Uint8, array.Int16, array.Uint32, array.Int64}[r.IntN(5)], 0, 0))
		}
		var sources []Source
		for range 1 + r.IntN(3) {
			count := 1 + r.IntN(200)
			if round < 6 {
				count = groupDocuments + r.IntN(groupDocuments)
			}
			ends := append(documentEnds{int64(s.BlockSize) + 1}, randomDocuments(r, count, 50)...)
			for i := range ends[1:] {
				ends[i+1] += ends[0]
			}
			from := Source{Main: newNumbered(main.dtype, salt, ends[count], main.axes...), Documents: ends}
			if s.Rows == "" {
				from.Documents = nil // targets are masked only by the array
			}
			if s.BOS != nil {
				from = documentSource(main.dtype, ends, testBOS)
			}
			for _, kind := range kinds {
				from.Aligned = append(from.Aligned, newNumbered(kind.dtype, r.Int64(), ends[count], kind.axes...))
			}
			if s.MaskArray != "" {
				mask := from.Aligned[len(kinds)-1].(*stubArray)
				for range mask.Len() {
					mask.values = append(mask.values, r.Int64N(2)<<r.IntN(7))
				}
			}
			sources, s.Weights = append(sources, from), append(s.Weights, float64(1+r.IntN(3)))
		}
		q, err := New(sources, s)
		must(t, err)
		for _, k := range []uint64{0, r.Uint64N(1000), MaxBatches - 2} {
			want := append(expectedBatch(t, q, sources, k), expectedBatch(t, q, sources, k+1)...)
			for range attempts(20, 60) {
				from := r.IntN(len(want))
				to := from + 1 + r.IntN(len(want)-from)
				if from%8 == 0 {
					from, to = 0, len(want)
				}
				got := make([]byte, to-from)
				must(t, q.Read(got, k, int64(from)))
				if int64(len(want)) != 2*q.Batch().Bytes() || !bytes.Equal(got, want[from:to]) {
					t.Fatalf("%+v: bytes %d to %d of batch %d are\n% x, want\n% x", s, from, to, k, got, want[from:to])
				}
			}
		}
	}
}

// A read fetches little more than it returns, wherever it starts and however large elements are.
func TestReadsFetchWhatTheyReturn(t *testing.T) {
	const request = 1 << 20
	for _, test := range []struct {
		axes     []int
		rows     int
		dtype    array.DType
		off, end int64
	}{
		{[]int{16 << 20}, 2, array.Float32, 0, 128 << 20},  // elements of 64 MiB
		{[]int{4096, 4096}, 2, array.Float32, 1, 16 << 20}, // starts within a number
		{[]int{1 << 20, 3}, 3, array.Float64, 12345, 20 << 20},
		{[]int{1000, 1000}, 2, array.Uint8, 0, 2e6},
		{[]int{8}, 1 << 20, array.Float16, 3, 8 << 20},
	} {
		from := newNumbered(test.dtype, 0, 1<<22, test.axes...)
		from.zeros = true
		q, err := New([]Source{{Main: from}}, Settings{Name: "train", BatchSize: test.rows, DType: Native, Layout: Rows, Order: Shuffle, World: 1})
		must(t, err)
		dst := make([]byte, request)
		for off := test.off; off < test.end; off += request {
			must(t, q.Read(dst[:min(request, test.end-off)], 0, off))
		}
		read := test.end - test.off
		rowsRead := read/q.Batch().RowBytes(0) + 1
		if slack := (2*read/request + 2*rowsRead + 2) * 8; from.bytesRead > read+slack || from.maxWindowBytes > request+16 {
			t.Errorf("%v: %d bytes are fetched for %d, %d at once", test.axes, from.bytesRead, read, from.maxWindowBytes)
		}
	}
}

func TestOneArrayReadsItsOwn(t *testing.T) {
	var sources []Source
	var arrays []*stubArray
	for range 2 {
		tokens, mask := newNumbered(array.Uint16, 0, 1e6), newNumbered(array.Uint8, 0, 1e6)
		arrays = append(arrays, tokens, mask)
		sources = append(sources, Source{Main: tokens, Aligned: []SourceArray{mask}})
	}
	q, err := New(sources, Settings{Name: "train", BatchSize: 4, BlockSize: 1000, DType: Native, Layout: XY, Order: Random, World: 1,
		Weights: []float64{1, 1}, Arrays: []AlignedArray{{"mask", AtY}}})
	must(t, err)
	for _, test := range []struct {
		name   string
		tokens int64 // bytes fetched
		mask   int64
	}{{"source", 0, 0}, {"mask", 0, 4000}, {"x", 8000, 0}} {
		for _, a := range arrays {
			a.bytesRead = 0
		}
		a := q.Batch().Arrays[slices.IndexFunc(q.Batch().Arrays, func(a array.Descriptor) bool { return a.Name == test.name })]
		must(t, q.Read(make([]byte, a.Bytes()), 5, a.Offset))
		if tokens, mask := arrays[0].bytesRead+arrays[2].bytesRead, arrays[1].bytesRead+arrays[3].bytesRead; tokens != test.tokens || mask != test.mask {
			t.Errorf("%s: %d bytes of tokens and %d of masks are read, want %d and %d", test.name, tokens, mask, test.tokens, test.mask)
		}
	}
}

// Conversions agree with arithmetic at the limits of each dtype, and report numbers that the target
// cannot hold.
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
	twosComplement := func(n *big.Int) int64 {
		return int64(new(big.Int).And(n, new(big.Int).SetUint64(1<<64-1)).Uint64())
	}
	for _, from := range integers {
		numbers := slices.DeleteFunc(slices.Clone(edges), func(n *big.Int) bool { return !holds(from, n) })
		for _, to := range integers {
			for round := range 200 {
				n, most := 1+rand.IntN(40), len(numbers)
				if round < len(numbers) {
					n, most = 1, 1
				}
				var raw, want []byte
				bad := -1
				for i := range n {
					number := numbers[(round+rand.IntN(most))%len(numbers)]
					raw, want = appendToken(raw, twosComplement(number), from.Size()), appendToken(want, twosComplement(number), to.Size())
					if bad < 0 && !holds(to, number) {
						bad = i
					}
				}
				odd := rand.IntN(8) // numbers may be unaligned
				src, dst := append(make([]byte, odd), raw...)[odd:], make([]byte, odd+len(want))[odd:]
				if got := newConverter(to, from)(dst, src); got != bad || bad < 0 && !bytes.Equal(dst, want) {
					t.Fatalf("%s to %s: % x: number %d does not fit, want %d; % x, want % x", from, to, raw, got, bad, dst, want)
				}
			}
		}
	}
}

func TestNewRejectsArraysThatNoFileHolds(t *testing.T) {
	s := Settings{Name: "train", BatchSize: MaxRows, BlockSize: 8, DType: Native, Layout: Rows, Order: Random, World: 1}
	many := slices.Repeat([]int{1}, MaxAxes)
	for _, test := range []struct {
		main, aligned SourceArray
		want          string
	}{
		{newNumbered(array.Float64, 0, 1, 1<<20, 1<<20), nil, "a batch of 16777216 rows would be larger than 4611686018427387904 bytes, too large for a file; reduce batch_size"},
		{newNumbered(array.Uint8, 0, 1), newNumbered(array.Float64, 0, 1, 1<<40), "larger than"},
		{newNumbered(array.Uint8, 0, 1, many...), newNumbered(array.Uint8, 0, 1, many...), ""},
		{newNumbered(array.Uint8, 0, 1, append(many, 1)...), nil, "array: elements with 30 axes; at most 29 can be served"},
		{newNumbered(array.Uint8, 0, 1), newNumbered(array.Uint8, 0, 1, append(many, 1)...), "at most 29 can be served"},
		{newNumbered(array.Uint8, 0, 1), newNumbered(array.Uint8, 0, 2), "array has 2 elements, but there are 1 in array"},
	} {
		from, s := Source{Main: test.main}, s
		if test.aligned != nil {
			from.Aligned, s.Arrays = []SourceArray{test.aligned}, []AlignedArray{{"beside", AtY}}
		}
		_, err := New([]Source{from}, s)
		if err == nil && test.want != "" || err != nil && (test.want == "" || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v and %v: error %v, want %q", test.main.Axes(), test.aligned, err, test.want)
		}
	}
}
