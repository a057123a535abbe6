package sampler

import (
	"fmt"
	"maps"
	"sort"
	"sync"
	"sync/atomic"
	"weak"

	"batchfs/cache/array"
)

// A windowSpec is what the settings say about the windows of a source: nothing else decides where
// rows begin and what they hold.
type windowSpec struct {
	len, step int64 // elements of a window, and from one disjoint window to the next: T+1 and T for x and y
	rows      Rows  // if rows are made of segments, which have len elements at most, else ""
}

func (s *Settings) window() windowSpec {
	w := windowSpec{len: int64(s.BlockSize) + 1, step: int64(s.BlockSize)}
	if s.Layout == Elements {
		w = windowSpec{len: 1, step: 1}
	} else if s.ofSegments() {
		w.rows = s.Rows
	}
	return w
}

// fit returns how many disjoint windows there are in n elements.
func (w windowSpec) fit(n int64) int64 { return max(n-w.len+w.step, 0) / w.step }

// A rowContent says what the rows of a source hold. A row is named by its start.
type rowContent interface {
	// segments appends the segments of the row at start to list, in the order in which they stand
	// in the row.
	segments(list []Segment, start int64) ([]Segment, error)

	// ends appends to list the index behind the last token of each document in a row, which has
	// these segments.
	ends(list []int, row []Segment) ([]int, error)

	// holding returns the rows that hold the element at pos.
	holding(pos int64) ([]rowRange, error)

	// groups returns how many rows there are up to the end of each group of documents, or nil if
	// rows are not made of documents. The caller must not change it.
	groups() []int64
}

// A rowRange is the rows with starts in [from, to), each of which holds one element. Its index in
// the row at start is at-start.
type rowRange struct{ from, to, at int64 }

// starts are the places at which rows of one source may begin. A start is the position of a
// window's first element. If rows are made of documents, it is the number of a row instead, as if
// rows were windows of one element.
type starts struct {
	windowSpec
	rowContent
	extents       []array.Extent
	all, disjoint int64                       // numbers of starts, and of starts a step apart
	upTo          *atomic.Pointer[prefixSums] // disjoint starts up to each run, if tables have them
	tables        *Tables
}

func newStarts(runs []array.Extent, spec windowSpec, content rowContent, tables *Tables) (*starts, error) {
	s := &starts{windowSpec: spec, rowContent: content, extents: runs, upTo: new(atomic.Pointer[prefixSums]), tables: tables}
	for _, r := range runs {
		if r.Len < s.len {
			return nil, fmt.Errorf("%s: %d tokens, need at least block_size+1 = %d", r.Name, r.Len, s.len)
		}
		s.all += r.Len - s.len + 1
		s.disjoint += s.fit(r.Len)
	}
	return s, nil
}

// at returns start i of all. Each run before it has len-1 positions at which no window begins.
func (s *starts) at(i int64) int64 {
	run := sort.Search(len(s.extents), func(n int) bool { return i < s.extents[n].Start+s.extents[n].Len-int64(n+1)*(s.len-1) })
	return i + int64(run)*(s.len-1)
}

// disjointAt returns start i of those a step apart.
func (s *starts) disjointAt(i int64) int64 {
	run, rest := s.disjointUpTo().find(i)
	return s.extents[run].Start + rest*s.step
}

// extentAt returns the extent that holds a position, or the last one for the position behind all,
// and how many disjoint windows are before it.
func (s *starts) extentAt(pos int64) (run array.Extent, before int64) {
	i := sort.Search(len(s.extents), func(i int) bool { return s.extents[i].Start > pos }) - 1
	return s.extents[i], s.disjointUpTo().before(i)
}

// disjointUpTo computes the sums at their first use, and again after they were dropped.
func (s *starts) disjointUpTo() prefixSums {
	if sums := s.upTo.Load(); sums != nil {
		return *sums
	}
	sums, sum := make(prefixSums, len(s.extents)), int64(0)
	for i, r := range s.extents {
		sum += s.fit(r.Len)
		sums[i] = sum
	}
	cacheTable(s.tables, s.upTo, &sums, 8*int64(len(sums)))
	return sums
}

type prefixSums []int64

// find returns which count i falls in, and how far.
func (s prefixSums) find(i int64) (which int, rest int64) {
	which = sort.Search(len(s), func(j int) bool { return i < s[j] })
	return which, i - s.before(which)
}

// before returns the sum of the first i counts.
func (s prefixSums) before(i int) int64 {
	if i == 0 {
		return 0
	}
	return s[i-1]
}

// windowRows are rows that hold one window each.
type windowRows struct {
	windowSpec
	documents Documents // nil: unknown
}

func (w *windowRows) segments(list []Segment, start int64) ([]Segment, error) {
	return append(list, Segment{Start: start, Len: int(w.len), Document: -1}), nil
}

func (w *windowRows) ends(list []int, row []Segment) ([]int, error) {
	start := row[0].Start
	i, err := w.documents.Of(start)
	if err != nil {
		return list, err
	}
	var some [16]int64
	for count := w.documents.Count(); i < count; i += int64(len(some)) {
		next := some[:min(count-i, int64(len(some)))]
		if err := w.documents.Ends(i, next); err != nil {
			return list, err
		}
		for _, end := range next {
			if end >= start+w.len {
				return list, nil
			}
			list = append(list, int(end-start))
		}
	}
	return list, nil
}

func (w *windowRows) holding(pos int64) ([]rowRange, error) {
	return []rowRange{{pos - w.len + 1, pos + 1, pos}}, nil
}

func (w *windowRows) groups() []int64 { return nil }

// A windowCache holds the starts of one source by their spec, which all its sequences share. The
// collector frees starts that no sequence uses any more. A windowCache is safe for concurrent use.
type windowCache struct {
	source  Source
	counted windowSpec // specifies the rows that Source.Groups counts

	mu     sync.Mutex                          // held while starts are made, so that they are made once
	cached map[windowSpec]weak.Pointer[starts] // guarded by mu
}

func (c *windowCache) get(spec windowSpec) (*starts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.cached[spec].Value(); s != nil {
		return s, nil
	}
	s, err := c.make(spec)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(c.cached, func(_ windowSpec, made weak.Pointer[starts]) bool { return made.Value() == nil })
	c.cached[spec] = weak.Make(s)
	return s, nil
}

func (c *windowCache) make(spec windowSpec) (*starts, error) {
	runs := c.source.Main.Extents()
	if spec.rows == "" {
		return newStarts(runs, spec, &windowRows{spec, c.source.Documents}, c.source.Tables)
	}
	var sums prefixSums
	if spec == c.counted {
		sums = c.source.Groups
	}
	rows, err := newDocumentRows(c.source.Documents, spec, sums, c.source.Tables)
	if err != nil {
		return nil, err
	}
	numbers := []array.Extent{{Name: runs[0].Name, Len: rows.sums[len(rows.sums)-1]}}
	return newStarts(numbers, windowSpec{len: 1, step: 1}, rows, c.source.Tables)
}
