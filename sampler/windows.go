package sampler

import (
	"fmt"
	"math/bits"
	"sort"
	"sync/atomic"

	"batchfs/cache/array"
)

// A windowSpec is the part of the settings that determines where rows begin and what they hold.
type windowSpec struct {
	len     int64      // elements of a window: T+1 for tokens
	stride  int64      // elements between the starts of disjoint windows: T for tokens
	rows    RowContent // "" for windows
	tooLong TooLong    // what happens to long documents; "" for windows
	bos     bool       // whether a segment that continues a document has BOS as its first token
}

func (s *Settings) newWindowSpec() windowSpec {
	w := windowSpec{len: int64(s.BlockSize) + 1, stride: int64(s.BlockSize)}
	if s.Layout == Rows {
		w = windowSpec{len: 1, stride: 1}
	} else if s.hasDocumentRows() {
		w.rows, w.tooLong, w.bos = s.Rows, s.LongDocuments(), s.BOS != nil
	}
	return w
}

// startsIn returns how many windows begin in n elements, step apart.
func (w windowSpec) startsIn(n, step int64) int64 { return max(n-w.len+step, 0) / step }

// disjointIn returns how many disjoint windows there are in n elements.
func (w windowSpec) disjointIn(n int64) int64 { return w.startsIn(n, w.stride) }

// A sourceRows says what the rows of a source hold. A row is identified by its start.
type sourceRows interface {
	// segments appends the segments of a row to list, in order.
	segments(list []Segment, start int64) ([]Segment, error)

	// appendDocuments appends, for each document in a row, 1 + the index of its last token there to
	// ends, and its number in the source to numbers. The end of the whole row may be missing.
	appendDocuments(ends []int, numbers []int64, row []Segment) ([]int, []int64, error)

	// rowsHolding returns the rows that hold the element at pos.
	rowsHolding(pos int64) ([]rowRange, error)

	counts() RowCounts
}

// A rowRange is the rows with starts in [from, to). All hold one element, at index element-start of
// the row at start.
type rowRange struct{ from, to, element int64 }

// starts are the places at which rows of one source may begin: positions of the first elements of
// windows. If rows are made of documents, they are the numbers of these rows, as if each were a
// window of one element.
type starts struct {
	spec                 windowSpec
	rows                 sourceRows
	extents              []array.Extent
	count, disjointCount int64                       // disjoint starts are stride apart
	sums, disjointSums   *atomic.Pointer[prefixSums] // starts up to each extent's end
	tooShort             int                         // extents without a start
	tables               *Tables
}

func newStarts(extents []array.Extent, spec windowSpec, rows sourceRows, tables *Tables) (*starts, error) {
	s := &starts{spec: spec, rows: rows, extents: extents, tables: tables}
	s.sums, s.disjointSums = new(atomic.Pointer[prefixSums]), new(atomic.Pointer[prefixSums])
	var refused array.Extent // the first that is too short and not Matched, or else the longest
	for _, r := range extents {
		n := spec.startsIn(r.Len, 1)
		if n == 0 {
			s.tooShort++
			if s.tooShort == 1 || refused.Matched && (!r.Matched || r.Len > refused.Len) {
				refused = r
			}
		}
		s.count += n
		s.disjointCount += spec.disjointIn(r.Len)
	}
	if s.tooShort > 0 && (s.count == 0 || !refused.Matched) {
		return nil, fmt.Errorf("%s: %d tokens, need at least block_size+1 = %d", refused.Name, refused.Len, spec.len)
	}
	return s, nil
}

// nth returns start i.
func (s *starts) nth(i int64) int64 {
	extent, rest := s.loadSums(s.sums, 1).find(i)
	return s.extents[extent].Start + rest
}

// nthDisjoint returns the start of disjoint window i.
func (s *starts) nthDisjoint(i int64) int64 {
	extent, rest := s.loadSums(s.disjointSums, s.spec.stride).find(i)
	return s.extents[extent].Start + rest*s.spec.stride
}

// extentOf returns the extent that holds pos, or the last one if pos is after all elements, and how
// many disjoint windows precede it.
func (s *starts) extentOf(pos int64) (extent array.Extent, before int64) {
	i := sort.Search(len(s.extents), func(i int) bool { return s.extents[i].Start > pos }) - 1
	return s.extents[i], s.loadSums(s.disjointSums, s.spec.stride).before(i)
}

// loadSums returns, for each extent, how many starts, step apart, lie up to its end. p caches the
// result.
func (s *starts) loadSums(p *atomic.Pointer[prefixSums], step int64) prefixSums {
	if sums := p.Load(); sums != nil {
		return *sums
	}
	sums, sum := make(prefixSums, len(s.extents)), int64(0)
	for i, r := range s.extents {
		sum += s.spec.startsIn(r.Len, step)
		sums[i] = sum
	}
	cacheTable(s.tables, p, &sums, 8*int64(len(sums)))
	return sums
}

// prefixSums are running totals of counts.
type prefixSums []int64

// find returns the number of the count that i falls in, and the index of i in it.
func (s prefixSums) find(i int64) (n int, rest int64) {
	n = sort.Search(len(s), func(j int) bool { return i < s[j] })
	return n, i - s.before(n)
}

// before returns the sum of the first i counts.
func (s prefixSums) before(i int) int64 {
	if i == 0 {
		return 0
	}
	return s[i-1]
}

// A hostShare is the windows of a source that an epoch reads: all of them or, with shuffle_block,
// those in the host's part of the source. If the part begins inside an extent, windows there start
// at the cut; in later extents, they are the source's own.
type hostShare struct {
	starts         *starts
	windows        int64
	cut            int64 // position of the cut before the part
	headWindows    int64 // windows before the first extent that begins in the part
	firstAfterHead int64 // source's number for the first window after headWindows
	runLen         int64 // windows in a run; 0: shuffle all at once
}

// wholeShare returns the share that has all windows. For rows of documents, a run is about a group.
func (s *starts) wholeShare() hostShare {
	share := hostShare{starts: s, windows: s.disjointCount}
	if groups := int64(len(s.rows.counts().Groups)); groups > 0 {
		share.runLen = (s.disjointCount + groups - 1) / groups
	}
	return share
}

// newHostShare returns the share that one of hosts has of a, with runs of runBytes bytes.
func newHostShare(s *starts, a SourceArray, runBytes int64, host, hosts int) hostShare {
	_, from := cutAt(a, runBytes, host, hosts)
	to, _ := cutAt(a, runBytes, host+1, hosts)
	column := columnOf(a)
	share := hostShare{starts: s, cut: from, runLen: max(runBytes/(s.spec.stride*int64(column.numberBytes*column.elementNumbers)), 1)}
	extent, first := s.extentOf(from)
	if share.firstAfterHead = first; from > extent.Start {
		share.headWindows = s.spec.disjointIn(min(to, extent.Start+extent.Len) - from)
		share.firstAfterHead += s.spec.disjointIn(extent.Len)
	}
	extent, before := s.extentOf(to)
	share.windows = share.headWindows + max(before+s.spec.disjointIn(to-extent.Start)-share.firstAfterHead, 0)
	return share
}

// cutAt returns the cut before a host, as close as possible to element floor(host*a.Len()/hosts).
func cutAt(a SourceArray, runBytes int64, host, hosts int) (end, begin int64) {
	high, low := bits.Mul64(uint64(a.Len()), uint64(host))
	pos, _ := bits.Div64(high, low, uint64(hosts))
	return a.Cut(int64(pos), runBytes)
}

func (s *hostShare) windowStart(i int64) int64 {
	if i < s.headWindows {
		return s.cut + i*s.starts.spec.stride
	}
	return s.starts.nthDisjoint(s.firstAfterHead + i - s.headWindows)
}

// windowRows are rows that hold one window each.
type windowRows struct {
	windowSpec
	documents Documents // nil: unknown
}

func (w *windowRows) segments(list []Segment, start int64) ([]Segment, error) {
	return append(list, Segment{Start: start, Len: int(w.len), Document: -1}), nil
}

func (w *windowRows) appendDocuments(ends []int, numbers []int64, row []Segment) ([]int, []int64, error) {
	start := row[0].Start
	i, err := w.documents.NumberAt(start)
	if err != nil {
		return ends, numbers, err
	}
	var buf [16]int64
	last := start // end of the last document that is not empty
	for count := w.documents.Count(); i < count; {
		next := buf[:min(count-i, int64(len(buf)))]
		if err := w.documents.Ends(i, next); err != nil {
			return ends, numbers, err
		}
		for n, end := range next {
			if end > last {
				numbers = append(numbers, i+int64(n))
			}
			if end >= start+w.len {
				return ends, numbers, nil
			}
			if end > last {
				ends, last = append(ends, int(end-start)), end
			}
		}
		if i += int64(len(next)); next[0] == last { // skip any other empty documents that end here
			after, err := w.documents.NumberAt(last)
			if err != nil {
				return ends, numbers, err
			}
			i = max(i, after)
		}
	}
	return ends, numbers, nil
}

func (w *windowRows) rowsHolding(pos int64) ([]rowRange, error) {
	return []rowRange{{pos - w.len + 1, pos + 1, pos}}, nil
}

func (w *windowRows) counts() RowCounts { return RowCounts{} }

// A windowCache holds the starts of one source by their windowSpec, for all its sequences.
type windowCache struct {
	source     Source
	countsSpec windowSpec // spec of the rows that Source.Counts counts
	weakCache[windowSpec, starts]
}

func (c *windowCache) build(spec windowSpec) (*starts, error) {
	extents := c.source.Main.Extents()
	if spec.rows == "" {
		return newStarts(extents, spec, &windowRows{spec, c.source.Documents}, c.source.Tables)
	}
	var counts RowCounts
	if spec == c.countsSpec {
		counts = c.source.Counts
	}
	rows, err := newDocumentRows(c.source.Documents, spec, counts, c.source.Tables)
	if err != nil {
		return nil, err
	}
	numbers := []array.Extent{{Name: extents[0].Name, Len: rows.sums[len(rows.sums)-1]}}
	if numbers[0].Len == 0 {
		return nil, fmt.Errorf("%s: too_long = %q leaves no row, because every document of the source has more than block_size+1 = %d tokens; "+
			"raise block_size, or set too_long = %q or %q", numbers[0].Name, Drop, spec.len, Truncate, Cut)
	}
	return newStarts(numbers, windowSpec{len: 1, stride: 1}, rows, c.source.Tables)
}
