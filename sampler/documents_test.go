package sampler

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
)

type documentEnds []int64

func (d documentEnds) Count() int64 { return int64(len(d)) }

func (d documentEnds) NumberAt(pos int64) (int64, error) {
	n, _ := slices.BinarySearch(d, pos+1)
	return int64(n), nil
}

func (d documentEnds) Ends(first int64, ends []int64) error {
	copy(ends, d[first:])
	return nil
}

// randomDocuments returns documents of random lengths, few of them above most tokens.
func randomDocuments(r *rand.Rand, count int, most int64) (ends documentEnds) {
	end := int64(0)
	for range count {
		n := 1 + r.Int64N(1+r.Int64N(most))
		if r.IntN(20) == 0 {
			n = 1 + r.Int64N(10*most)
		}
		end += n
		ends = append(ends, end)
	}
	return ends
}

const testBOS uint64 = 1 << 30 // above the positions of all tokens

// documentSource returns a source with these documents, whose tokens equal their positions. If bos
// is given, each document begins with it instead.
func documentSource(dtype array.DType, ends documentEnds, bos ...uint64) Source {
	s := stubSources(dtype, []int64{ends[len(ends)-1]})[0]
	s.Documents = ends
	if len(bos) > 0 {
		tokens := newNumbered(dtype, 0, ends[len(ends)-1])
		for i := range tokens.Len() {
			tokens.values = append(tokens.values, i)
		}
		for _, begin := range append(documentEnds{0}, ends[:len(ends)-1]...) {
			tokens.values[begin] = int64(bos[0])
		}
		s.Main = tokens
	}
	return s
}

// rowsOf returns all rows of documents, computed as docs/orders.md says.
func rowsOf(kind RowContent, tooLong TooLong, t int64, ends documentEnds) (rows [][]Segment) {
	for first := 0; first < len(ends); first += groupDocuments {
		var segments []Segment
		for d := first; d < min(first+groupDocuments, len(ends)); d++ {
			start := int64(0)
			if d > 0 {
				start = ends[d-1]
			}
			isLong := ends[d]-start > t+1
			if isLong && tooLong == Drop {
				continue
			}
			for first := start; first == start || first < ends[d]-1; first += t {
				segments = append(segments, Segment{Start: first, Len: int(min(t+1, ends[d]-first)), Document: int64(d)})
				if kind == DocumentFirst || isLong && tooLong == Truncate {
					break
				}
			}
		}
		if kind != Packed {
			for _, p := range segments {
				rows = append(rows, []Segment{p})
			}
			continue
		}
		slices.SortStableFunc(segments, func(a, b Segment) int { return b.Len - a.Len })
		type row struct {
			segments []Segment
			room     int
		}
		var packed [][]Segment
		var changed []row // rows with room, the one changed last at the end
		for _, p := range segments {
			best, to := -1, row{room: int(t) + 1}
			for i, row := range changed {
				if row.room >= p.Len && (best < 0 || row.room <= changed[best].room) {
					best, to = i, row
				}
			}
			if best >= 0 {
				changed = slices.Delete(changed, best, best+1)
			}
			to = row{append(to.segments, p), to.room - p.Len}
			if to.room > 0 {
				changed = append(changed, to)
			} else {
				packed = append(packed, to.segments)
			}
		}
		for _, row := range changed {
			packed = append(packed, row.segments)
		}
		for _, row := range packed {
			slices.SortFunc(row, func(a, b Segment) int { return int(a.Start - b.Start) })
			index := 0
			for i := range row {
				row[i].At = index
				index += row[i].Len
			}
		}
		slices.SortFunc(packed, func(a, b []Segment) int { return int(a[0].Start - b[0].Start) })
		rows = append(rows, packed...)
	}
	return rows
}

var (
	documentKinds = []RowContent{OfDocument, DocumentFirst, Packed}
	tooLongs      = []TooLong{Cut, Drop, Truncate}
)

// aroundRows returns the ends of documents in random order. Their lengths are close to the length
// of one row or of several rows. The first document has one token.
func aroundRows(r *rand.Rand, t int64, count int) (ends documentEnds) {
	lengths := []int64{1, t - 1, t, t + 1, t + 2, 2*t - 1, 2 * t, 2*t + 1, 2*t + 2, 3*t + 1, 3*t + 2}
	end := int64(1)
	ends = documentEnds{end}
	for range count {
		end += max(lengths[r.IntN(len(lengths))], 1)
		ends = append(ends, end)
	}
	return ends
}

// Rows have the segments that docs/orders.md defines.
func TestRowsOfDocuments(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, kind := range documentKinds {
		for _, T := range []int{1, 2, 7, 64, 5000, 300_000} {
			for _, count := range []int{1, 2, 40, attempts(40, groupDocuments), attempts(groupDocuments+T%99, 3*groupDocuments-7)} {
				ends := randomDocuments(r, count, 1+r.Int64N(int64(max(80, T))))
				checkRowsOfDocuments(t, kind, "", T, ends)
			}
			if T <= 64 {
				for _, tooLong := range tooLongs {
					checkRowsOfDocuments(t, kind, tooLong, T, aroundRows(r, int64(T), attempts(300, 2*groupDocuments)))
				}
			}
		}
	}
}

func checkRowsOfDocuments(t *testing.T, kind RowContent, tooLong TooLong, T int, ends documentEnds) {
	t.Helper()
	s := Settings{Name: "train", BatchSize: 1, BlockSize: T, DType: array.Int64, Layout: XY, Order: Sequential, World: 1, Rows: kind, TooLong: tooLong}
	q, err := New([]Source{documentSource(array.Uint32, ends)}, s)
	must(t, err)
	name := fmt.Sprintf("%s, too_long %s, T=%d, %d documents", kind, tooLong, T, len(ends))
	want := rowsOf(kind, tooLong, int64(T), slices.Clone(ends))
	if int(q.RowsPerEpoch()) != len(want) {
		t.Fatalf("%s: %d rows, want %d", name, q.RowsPerEpoch(), len(want))
	}
	for i, row := range want {
		_, got, err := q.Segments(uint64(i), 0)
		must(t, err)
		if !slices.Equal(got, row) {
			t.Fatalf("%s: row %d is %v, want %v", name, i, got, row)
		}
	}
	long, start := int64(0), int64(0)
	for _, end := range ends {
		if end-start > int64(T)+1 {
			long++
		}
		start = end
	}
	if counts := q.Counts()[0]; counts.Long != long {
		t.Errorf("%s: %d long documents, want %d", name, counts.Long, long)
	}
	again, err := New([]Source{{Main: q.sources[0].arrays[0], Documents: unreadableDocuments{ends}, Counts: q.Counts()[0]}}, s)
	must(t, err)
	if again.RowsPerEpoch() != q.RowsPerEpoch() || again.Counts()[0].Long != long {
		t.Errorf("%s: %d rows, and %d from the counts", name, q.RowsPerEpoch(), again.RowsPerEpoch())
	}
}

// With Drop, no row has a token of a long document. With Truncate, the first T+1 tokens of each
// document are in one row of an epoch, and no others. Documents that are not long have the tokens
// that they have with Cut. All of this holds in each source of a mixture with stages, and with BOS.
func TestLongDocuments(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for _, kind := range documentKinds {
		for _, T := range []int{1, 2, 5, 16} {
			for n := range attempts(4, 20) {
				ends := []documentEnds{aroundRows(r, int64(T), 60), aroundRows(r, int64(T), 25)}
				s := Settings{Name: "train", BatchSize: 1 + r.IntN(4), BlockSize: T, DType: array.Int64, Layout: Tokens, World: 1, Seed: r.Uint64(), Rows: kind,
					Order: []Order{Shuffle, Sequential}[r.IntN(2)]}
				if n%2 == 0 {
					s.Stages = []Stage{{Weights: []float64{2, 1}}, {FirstRow: 7, Weights: []float64{1, 3}}}
				} else {
					s.Weights = []float64{1, 2}
				}
				var sources []Source
				for _, ends := range ends {
					sources = append(sources, documentSource(array.Uint32, ends, testBOS))
				}
				if n%4 < 2 {
					s.BOS = new(testBOS)
				}
				for _, s.TooLong = range tooLongs {
					checkLongDocuments(t, sources, ends, s)
				}
			}
		}
	}
}

func checkLongDocuments(t *testing.T, sources []Source, ends []documentEnds, s Settings) {
	t.Helper()
	q, err := New(sources, s)
	must(t, err)
	// How often each token is in epoch 0.
	seen := [2][]int{make([]int, length(sources[0])), make([]int, length(sources[1]))}
	isOver := [2]bool{}
	for k := uint64(0); isOver != [2]bool{true, true}; k++ {
		tokens := viewAs[int64](readBatch(t, q, k)[:q.Batch().MainBytes()])
		for j := range s.BatchSize {
			source, segments, err := q.Segments(k, j)
			must(t, err)
			if q.Epoch(k, j) > 0 {
				isOver[source] = true
				continue
			}
			for _, segment := range segments {
				copied := segment.Copied()
				for i := range copied.Len {
					pos := copied.Start + int64(i)
					seen[source][pos]++
					if got, want := tokens[j*(s.BlockSize+1)+copied.At+i], sources[source].Main.(*stubArray).values[pos]; got != want {
						t.Fatalf("%+v: row %d of batch %d has token %d at %d, want %d", s, j, k, got, copied.At+i, want)
					}
				}
			}
		}
	}
	for source, ends := range ends {
		start := int64(0)
		for _, end := range ends {
			n, row := end-start, int64(s.BlockSize)+1
			for i := range n {
				times := 1
				switch {
				case n <= row:
				case s.LongDocuments() == Drop:
					times = 0
				case s.LongDocuments() == Truncate:
					times = int(min(max(row-i, 0), 1))
				case i > 0 && i < n-1 && i%int64(s.BlockSize) == 0 && s.BOS == nil:
					times = 2 // ends a segment and begins the next
				}
				if got := seen[source][start+i]; got != times {
					t.Fatalf("%+v: token %d of a document of %d tokens of source %d is in an epoch %d times, want %d", s, i, n, source, got, times)
				}
			}
			start = end
		}
	}
}

// In all rows of an epoch, the segments in cu_seqlens are parts of the documents in
// document_numbers, as the index numbers them, whatever rows consist of and wherever documents are
// empty.
func TestDocumentNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	for _, kind := range append(slices.Clone(documentKinds), Windows) {
		for n := range attempts(30, 200) {
			var list []documentEnds
			for range 2 {
				ends, end := documentEnds{}, int64(0)
				for range 2 + r.IntN(60) {
					end += int64(r.IntN(2) * r.IntN(30))
					ends = append(ends, end)
				}
				list = append(list, append(ends, end+25))
			}
			s := Settings{Name: "train", BatchSize: 1 + r.IntN(4), BlockSize: 1 + r.IntN(20), DType: array.Int64, Layout: XY, World: 1, Seed: r.Uint64(), Rows: kind,
				TooLong: []TooLong{Cut, Truncate}[n%2], Order: []Order{Random, Shuffle, Sequential}[r.IntN(3)], Weights: []float64{2, 1}, Documents: true, DocumentNumbers: true}
			if kind == Windows {
				s.TooLong = ""
			}
			q, err := New([]Source{documentSource(array.Uint32, list[0]), documentSource(array.Uint32, list[1])}, s)
			must(t, err)
			for k := range uint64(q.BatchesPerEpoch()) {
				checkDocumentNumbers(t, q, list, k)
			}
		}
	}
}

func checkDocumentNumbers(t *testing.T, q *Sequence, ends []documentEnds, k uint64) {
	t.Helper()
	arrays, T := map[string][]byte{}, q.BlockSize
	whole := readBatch(t, q, k)
	for _, a := range q.Batch().Arrays {
		arrays[a.Name] = whole[a.Offset:][:a.Bytes()]
	}
	for j := range q.BatchSize {
		x, bounds := viewAs[int64](arrays["x"])[j*T:][:T], viewAs[int32](arrays["cu_seqlens"])[j*(T+1):][:T+1]
		numbers, source := viewAs[int64](arrays["document_numbers"])[j*T:][:T], viewAs[int16](arrays["source"])[j]
		used := T
		if q.Rows != Windows {
			used = int(viewAs[int32](arrays["lengths"])[j])
		}
		var want []int64 // numbers of the documents that have segments in x
		for segment := 0; bounds[segment] < int32(T); segment++ {
			number := int64(-1)
			for i := int(bounds[segment]); i < int(bounds[segment+1]); i++ {
				if i < used {
					number, _ = ends[source].NumberAt(x[i])
				}
				if numbers[segment] != number {
					t.Fatalf("%+v: row %d of batch %d has document %d at %d, and document_numbers %d with cu_seqlens %d", q.Settings, j, k, number, i, numbers, bounds)
				}
			}
			if number >= 0 {
				want = append(want, number)
			}
		}
		for _, number := range numbers[len(want):] {
			if number != -1 {
				t.Fatalf("%+v: row %d of batch %d has document_numbers %d, want %d and then -1", q.Settings, j, k, numbers, want)
			}
		}
		if all, err := q.DocumentsOf(k, j); err != nil || len(all) < len(want) || len(all) > len(want)+1 || !slices.Equal(all[:len(want)], want) {
			t.Fatalf("%+v: row %d of batch %d has the documents %d, %v, want %d and perhaps that of the last target", q.Settings, j, k, all, err, want)
		}
	}
}

// A source whose documents are all dropped has no rows.
func TestAllDocumentsAreDropped(t *testing.T) {
	s := Settings{Name: "train", BatchSize: 1, BlockSize: 4, DType: Native, Layout: XY, Order: Random, World: 1, Rows: Packed, TooLong: Drop}
	_, err := New([]Source{documentSource(array.Uint32, documentEnds{6, 13})}, s)
	const want = `shard0.bin: too_long = "drop" leaves no row, because every document of the source has more than block_size+1 = 5 tokens; raise block_size, or set`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// With BOS, every segment begins with it, and nothing else changes: each token except the first of
// a document is still a target exactly once in an epoch.
func TestSegmentsBeginWithBOS(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const T = 16
	ends := randomDocuments(r, attempts(200, groupDocuments+200), 4*T)
	for n := range int64(50) { // as long as n rows and more
		ends = append(ends, ends[len(ends)-1]+n*T+1+n%3)
	}
	for _, kind := range []RowContent{OfDocument, Packed} {
		for _, masked := range []bool{false, true} {
			s := Settings{Name: "train", BatchSize: 3, BlockSize: T, DType: array.Int64, Layout: XY, Order: Shuffle, World: 1, Rows: kind,
				Documents: true, MaskTargets: masked, EOT: testBOS}
			source := documentSource(array.Uint32, ends, testBOS)
			plain, err := New([]Source{source}, s)
			must(t, err)
			s.BOS = new(testBOS)
			q, err := New([]Source{source}, s)
			must(t, err)
			targets := make([]int, q.sources[0].arrays[0].Len())
			for k := range uint64(q.BatchesPerEpoch()) {
				got, want := readBatch(t, q, k), readBatch(t, plain, k)
				x, y := viewAs[int64](got[:8*3*T]), viewAs[int64](got[8*3*T:][:8*3*T])
				if others := int(q.Batch().MainBytes()); !bytes.Equal(got[others:], want[others:]) || masked && !bytes.Equal(got[8*3*T:], want[8*3*T:]) {
					t.Fatalf("%s: y or documents of batch %d change with BOS", kind, k)
				}
				for j := range 3 {
					_, segments, err := q.Segments(k, j)
					must(t, err)
					for _, s := range segments {
						if at := j*T + s.At; s.At < T && x[at] != int64(testBOS) || s.At > 0 && !masked && y[at-1] != int64(testBOS) {
							t.Fatalf("%s: row %d of batch %d has at %d no BOS: x %v, y %v", kind, j, k, s.At, x[j*T:][:T], y[j*T:][:T])
						}
					}
					for _, target := range y[j*T:][:T] {
						if target >= 0 && target != int64(testBOS) && q.Epoch(k, j) == 0 {
							targets[target]++
						}
					}
				}
			}
			for i, n := range targets {
				if isFirst := source.Main.(*stubArray).values[i] == int64(testBOS); isFirst == (n == 1) || n > 1 {
					t.Fatalf("%s: token %d is a target %d times", kind, i, n)
				}
			}
		}
	}
}

// Empty documents change no batch, wherever they are.
func TestEmptyDocumentsAddNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range attempts(60, 300) {
		ends := randomDocuments(r, 1+r.IntN(200), 30)
		with := documentEnds{}
		empty := func(end int64) {
			for range []int{0, 0, 1, 2, r.IntN(100)}[r.IntN(5)] {
				with = append(with, end)
			}
		}
		empty(0)
		for _, end := range ends {
			with = append(with, end)
			empty(end)
		}
		s := Settings{Name: "train", BatchSize: 1 + r.IntN(4), BlockSize: 1 + r.IntN(int(min(ends[len(ends)-1], 40))), DType: Native, Layout: XY, World: 1, Seed: r.Uint64(),
			Order: []Order{Random, Shuffle, Sequential}[r.IntN(3)], Rows: append(slices.Clone(documentKinds), Windows)[r.IntN(4)], Documents: r.IntN(2) == 0}
		if s.BlockSize == int(ends[len(ends)-1]) {
			continue // no window
		}
		if s.Rows != Windows && r.IntN(2) == 0 {
			s.BOS = new(testBOS)
		}
		var both []*Sequence
		for _, list := range []documentEnds{ends, with} {
			source := documentSource(array.Uint32, ends)
			if s.BOS != nil {
				source = documentSource(array.Uint32, ends, testBOS)
			}
			source.Documents = list
			q, err := New([]Source{source}, s)
			must(t, err)
			both = append(both, q)
		}
		for k := range uint64(20) {
			if !bytes.Equal(readBatch(t, both[0], k), readBatch(t, both[1], k)) {
				t.Fatalf("%+v: batch %d is another with the ends %d than with %d", s, k, with, ends)
			}
		}
		for pos := range min(ends[len(ends)-1], 50) {
			want, got := find(t, both[0], 0, pos, 0, func(int64, int64) bool { return true }), find(t, both[1], 0, pos, 0, func(int64, int64) bool { return true })
			if !slices.Equal(got, want) {
				t.Fatalf("%+v: token %d is found in %v with the ends %d, and in %v with %d", s, pos, got, with, want, ends)
			}
		}
	}
}

// Every read with the first token of a document checks it. A token that BOS replaces is not read.
func TestDocumentsMustBeginWithBOS(t *testing.T) {
	source := documentSource(array.Uint32, documentEnds{3, 12}, testBOS)
	source.Main.(*stubArray).values[3] = 8
	q, err := New([]Source{source}, Settings{BatchSize: 1, BlockSize: 4, DType: Native, Layout: XY, Order: Sequential, World: 1, Rows: OfDocument,
		BOS: new(testBOS)})
	must(t, err)
	for _, test := range []struct {
		k    uint64
		off  int64
		want string
	}{
		{0, 0, ""}, {1, 4, ""}, {2, 0, ""},
		{1, 3, "stub: document 1 begins with token 8, at index 3, and every document must begin with bos, which is 1073741824"},
	} {
		if err := q.Read(make([]byte, 8), test.k, test.off); fmt.Sprint(err) != "<nil>" && test.want == "" || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("batch %d from byte %d on: error %v, want %q", test.k, test.off, err, test.want)
		}
	}
}

// Packed rows of web documents contain less than 0.5% padding.
func TestPackedRowsNeedLittlePadding(t *testing.T) {
	r, end, ends := rand.New(rand.NewPCG(1, 2)), int64(0), documentEnds{}
	for range 44_808 { // documents of 938 tokens on average
		end += max(1, int64(938*math.Exp(1.2*r.NormFloat64()-1.2*1.2/2)))
		ends = append(ends, end)
	}
	rows, err := newDocumentRows(ends, windowSpec{len: 2049, stride: 2048, rows: Packed}, RowCounts{}, NewTables(1<<20))
	must(t, err)
	if padding := 1 - float64(end)/float64(rows.sums[len(rows.sums)-1]*2049); padding >= 0.005 {
		t.Errorf("%.2f%% of the rows is padding", 100*padding)
	}
}

type unreadableDocuments struct{ documentEnds }

func (unreadableDocuments) Ends(int64, []int64) error { return errors.New("read again") }

// Ends by token and ends by index give the same bytes, however they are read. In a mixture, the
// index of another source decides, wherever that source has the token.
func TestEndsByTokenAndByIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range attempts(40, 300) {
		n := 2 + r.IntN(120)
		s := Settings{
			Name: "train", BatchSize: 1 + r.IntN(4), BlockSize: 1 + r.IntN(min(n-1, 40)), Seed: r.Uint64(), World: 1,
			DType: []array.DType{array.Int16, array.Int32, array.Int64}[r.IntN(3)], Layout: []Layout{XY, Tokens}[r.IntN(2)],
			Order: []Order{Random, Shuffle, Sequential}[r.IntN(3)], EOT: uint64(r.IntN(5)), Documents: true, Arrays: []AlignedArray{{"logits", AtX}},
		}
		s.MaskTargets = s.Layout == XY && r.IntN(2) == 0
		var ends, unrelated documentEnds
		stored := []array.DType{array.Uint8, array.Uint16, array.Uint32, array.Int64}[r.IntN(4)]
		tokens := newNumbered(stored, 0, int64(n))
		for i := range int64(n) {
			tokens.values = append(tokens.values, int64(r.IntN(1+r.IntN(8))))
			if tokens.values[i] == int64(s.EOT) || i == int64(n-1) {
				ends = append(ends, i+1)
			}
			if r.IntN(4) == 0 || i == int64(n-1) {
				unrelated = append(unrelated, i+1)
			}
		}
		from := Source{Main: tokens, Aligned: []SourceArray{newNumbered(array.Float32, 9, int64(n), 3)}, Documents: ends}
		sources := []Source{from}
		if r.IntN(2) == 0 {
			s.Weights = []float64{1, 1}
			sources = append(sources, from)
			sources[1].Documents = unrelated
		}
		byIndex, err := New(sources, s)
		must(t, err)
		sources[0].Documents, s.HasEOT = nil, true
		byToken, err := New(sources, s)
		must(t, err)
		for k := range uint64(2) {
			want := readBatch(t, byIndex, k)
			for range 30 {
				from := r.IntN(len(want))
				to := from + 1 + r.IntN(len(want)-from)
				for _, q := range []*Sequence{byToken, byIndex} {
					got := make([]byte, to-from)
					must(t, q.Read(got, k, int64(from)))
					if !bytes.Equal(got, want[from:to]) {
						t.Fatalf("%+v: bytes %d to %d of batch %d are\n% x, want\n% x", q.Settings, from, to, k, got, want[from:to])
					}
				}
			}
		}
	}
}

// Every epoch has all rows in a new order, and successive rows come from few runs.
func TestRunShuffle(t *testing.T) {
	for _, test := range []struct{ rows, groups int64 }{
		{1, 1}, {2, 1}, {3, 2}, {17, 16}, {17, 17}, {100, 1}, {1000, 20}, {1001, 33}, {4096, 40}, {5003, 500},
	} {
		w := &starts{disjointCount: test.rows, rows: &documentRows{sums: make(prefixSums, test.groups)}}
		o := newRunShuffle([2]uint64{7, 8}, uint64(test.rows), uint64(w.wholeShare().runLen))
		var last []uint64
		for epoch := range uint64(attempts(3, 20)) {
			seen := make([]bool, test.rows)
			var epochRows []uint64
			for i := range uint64(test.rows) {
				row := o.permute(epoch, i)
				if row >= uint64(test.rows) || seen[row] || o.inverse(epoch, row) != i {
					t.Fatalf("%+v: epoch %d has row %d at %d, seen or not inverted", test, epoch, row, i)
				}
				seen[row] = true
				epochRows = append(epochRows, row)
			}
			if test.rows > 10 && slices.Equal(epochRows, last) {
				t.Errorf("%+v: epochs %d and %d are in one order", test, epoch-1, epoch)
			}
			last = epochRows
			for pool := range slices.Chunk(epochRows, int(o.fullPool.n)) {
				blocks := map[uint64]bool{}
				for _, row := range pool {
					blocks[(row+uint64(test.rows)-o.offset(epoch))%uint64(test.rows)/o.runLen] = true
				}
				if len(blocks) > mixedRuns+1 {
					t.Errorf("%+v: a pool has rows of %d blocks", test, len(blocks))
				}
			}
		}
	}
}

func TestRowsOfDocumentsReject(t *testing.T) {
	source := documentSource(array.Uint16, documentEnds{5, 9})
	masked := source
	masked.Aligned = []SourceArray{newNumbered(array.Float16, 0, 9)}
	for _, test := range []struct {
		source Source
		change func(*Settings)
		want   string
	}{
		{source, func(s *Settings) { s.EOT = 70_000 }, "rows are filled up with bos or eot, 70000, which dtype uint16 cannot hold"},
		{source, func(s *Settings) { s.DType, s.BOS = array.Int64, new(testBOS) }, "its tokens are uint16, which cannot be 1073741824; check bos"},
		{source, func(s *Settings) { s.DType, s.MaskTargets, s.IgnoreIndex = array.Int16, true, -40_000 },
			`mask_targets sets targets to -40000, which dtype int16 cannot hold; set dtype = "int64"`},
		{source, func(s *Settings) { s.DType, s.MaskTargets, s.MaskArray = array.Int64, true, "mask" }, `mask_targets = "mask": no array has this name`},
		{masked, func(s *Settings) { s.Arrays[0].At = AtX }, `mask_targets = "mask": the array is aligned with x; set at = "y"`},
		{masked, func(s *Settings) { s.Arrays[0].At = AtY }, `mask_targets = "mask": the array holds float16, but must hold one integer or bool`},
		{source, func(s *Settings) { s.MaskTargets = true }, "mask_targets sets targets to -100, which dtype uint16 cannot hold"},
		{Source{Main: source.Main, Documents: unreadableDocuments{documentEnds{5, 9}}}, func(*Settings) {}, "read again"},
	} {
		s := Settings{BatchSize: 1, BlockSize: 8, DType: array.Uint16, Layout: XY, Order: Random, World: 1, Rows: Packed}
		if test.source.Aligned != nil {
			s.Arrays, s.DType, s.MaskTargets, s.MaskArray = []AlignedArray{{Name: "mask"}}, array.Int64, true, "mask"
		}
		test.change(&s)
		if _, err := New([]Source{test.source}, s); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v, want %s", s, err, test.want)
		}
	}
}

// BenchmarkRowsOfDocuments measures padding and packing time, with log-normal lengths as on the
// web.
func BenchmarkRowsOfDocuments(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	end, ends := int64(0), documentEnds{}
	for range 64 * groupDocuments {
		end += max(1, int64(600*math.Exp(1.2*r.NormFloat64()-1.2*1.2/2)))
		ends = append(ends, end)
	}
	for _, T := range []int64{1024, 2048, 8192} {
		b.Run(fmt.Sprint(T), func(b *testing.B) {
			var rows *documentRows
			for b.Loop() {
				var err error
				rows, err = newDocumentRows(ends, windowSpec{len: T + 1, stride: T, rows: Packed}, RowCounts{}, NewTables(1<<20))
				must(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ends)), "ns/document")
			b.ReportMetric(100*(1-float64(end)/float64(rows.sums[len(rows.sums)-1]*(T+1))), "%padding")
		})
	}
}

type windowRecorder struct {
	SourceArray
	windows *[]array.Window
}

func (r windowRecorder) Read(ws []array.Window, visit func(int, []byte) error) error {
	*r.windows = append(*r.windows, ws...)
	return r.SourceArray.Read(ws, visit)
}

func TestWindowsAreWhatReadFetches(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	sorted := func(list []array.Window) []array.Window {
		slices.SortFunc(list, func(a, b array.Window) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Len, b.Len)) })
		return list
	}
	for i, kind := range slices.Concat(documentKinds, documentKinds, documentKinds, []RowContent{Windows}) {
		tooLong := append(tooLongs, "")[i/len(documentKinds)]
		var got []array.Window
		source, bos := documentSource(array.Uint32, randomDocuments(r, 200, 60), testBOS), new(testBOS)
		source.Main = windowRecorder{source.Main, &got}
		if kind == Windows {
			bos = nil
		}
		q, err := New([]Source{source}, Settings{Name: "train", BatchSize: 5, BlockSize: 40, DType: array.Int64, Layout: XY, Order: Shuffle,
			World: 1, Rows: kind, TooLong: tooLong, BOS: bos})
		must(t, err)
		for k := range uint64(20) {
			got = nil
			readBatch(t, q, k)
			var want []array.Window
			for w, err := range q.Windows(k) {
				must(t, err)
				want = append(want, w.Window)
			}
			if !slices.Equal(sorted(got), sorted(want)) {
				t.Fatalf("rows = %s, too_long = %s, batch %d: %v are read, and %v are named", kind, tooLong, k, got, want)
			}
		}
		for range q.Windows(0) {
			break
		}
	}
}
