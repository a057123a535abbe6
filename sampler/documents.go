package sampler

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// A Segment is the part of a row that comes from one document or, with rows of Windows, the whole
// row.
type Segment struct {
	Start    int64 // position in the source of the first token
	Len      int   // tokens
	At       int   // offset in the row, in tokens
	Document int64 // number in the source; -1: unknown
	Inserted bool  // whether a row has BOS instead of the token at Start
}

// Copied returns the part of the segment whose tokens are copied to the row.
func (s Segment) Copied() Segment {
	if s.Inserted {
		s.Start, s.Len, s.At = s.Start+1, s.Len-1, s.At+1
	}
	return s
}

// documentRows lays the documents of a source into rows, group by group, so that a row can be found
// from its group alone. Only the number of rows in each group always stays in memory.
type documentRows struct {
	documents Documents
	windowSpec
	sums       prefixSums // rows up to the end of each group
	long       int64      // number of long documents
	packerPool sync.Pool  // *groupPacker values
	tables     *Tables
	cached     []atomic.Pointer[rowGroup] // one per group
}

// groupDocuments is the number of documents in a group. Larger groups need less padding, but more
// memory and time.
const groupDocuments = 4096

// cut cuts a document of n tokens into full segments of T+1 tokens that begin T apart, and a
// shorter remainder. A remainder of one token is dropped unless it is the whole document, because
// the segment before it ends with that token. Of a long document, Truncate keeps only the first
// segment, and Drop none.
func (w windowSpec) cut(n int64) (full int64, remainder int32) {
	switch {
	case n <= w.stride:
		return 0, int32(n)
	case w.tooLong == Truncate:
		return 1, 0
	case w.tooLong == Drop && w.isLong(n):
		return 0, 0
	}
	full = (n - 1) / w.stride
	if remainder = int32(n - full*w.stride); remainder == 1 {
		remainder = 0
	}
	return full, remainder
}

// isLong reports whether a document of n tokens is longer than a row.
func (w windowSpec) isLong(n int64) bool { return n > w.len }

// A rowGroup is the layout of the rows of a group. It is immutable once it is cached.
type rowGroup struct {
	rowRuns  []rowRun // sorted by row, with a sentinel at the end
	segments []groupSegment
}

// A rowRun is one row, or several full rows of one document that start T tokens apart.
type rowRun struct {
	row          int64 // first row's number in the group
	firstSegment int32 // index in rowGroup.segments
}

type groupSegment struct {
	start     int64 // position in the source
	len       int32 // tokens
	document  int16 // number in the group
	continues bool  // whether the first token is the last one of the document's previous segment
}

// newDocumentRows counts the rows of each group, unless known already holds the counts.
func newDocumentRows(documents Documents, w windowSpec, known RowCounts, tables *Tables) (*documentRows, error) {
	groups := int((documents.Count() + groupDocuments - 1) / groupDocuments)
	r := &documentRows{documents: documents, windowSpec: w, sums: known.Groups, long: known.Long, tables: tables,
		cached: make([]atomic.Pointer[rowGroup], groups)}
	r.packerPool.New = func() any {
		p := &groupPacker{bounds: make([]int64, groupDocuments+1)}
		if w.rows == Packed {
			p.packer = newPacker(int(w.len))
		}
		return p
	}
	if len(known.Groups) == groups {
		return r, nil
	}
	r.sums = make(prefixSums, groups)
	workers := min(runtime.GOMAXPROCS(0), groups)
	errs, long := make([]error, workers), make([]int64, workers)
	var counting sync.WaitGroup
	for i := range workers {
		counting.Go(func() {
			p := r.packerPool.Get().(*groupPacker)
			defer r.packerPool.Put(p)
			for g := i; g < groups && errs[i] == nil; g += workers {
				var n int64
				r.sums[g], n, errs[i] = r.load(p, int64(g))
				long[i] += n
			}
		})
	}
	counting.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, err
	}
	for g := range r.sums[1:] {
		r.sums[g+1] += r.sums[g]
	}
	r.long = 0
	for _, n := range long {
		r.long += n
	}
	return r, nil
}

// A groupPacker lays out one group at a time, reusing its memory. It belongs to one goroutine.
type groupPacker struct {
	rowGroup
	bounds      []int64 // start of the group, then the end of each document
	remainders  []int32 // lengths of segments shorter than a row
	packer      *packer // nil unless rows are packed
	nextSegment []int32 // index of each row's next segment, plus 1; initially 0
}

// load reads, cuts and packs the documents of group g, and returns how many rows they fill, and how
// many of them are long.
func (r *documentRows) load(p *groupPacker, g int64) (rows, long int64, err error) {
	first := g * groupDocuments
	n := min(r.documents.Count()-first, groupDocuments)
	p.bounds, p.bounds[0] = p.bounds[:n+1], 0
	// bounds[0] is the end of the previous group's last document, or 0.
	if err := r.documents.Ends(max(first-1, 0), p.bounds[1-min(g, 1):]); err != nil {
		return 0, 0, err
	}
	p.remainders = p.remainders[:0]
	for i, end := range p.bounds[1:] {
		n := end - p.bounds[i]
		full, remainder := r.cut(n)
		if rows += full; remainder > 0 {
			p.remainders = append(p.remainders, remainder)
		}
		if r.isLong(n) {
			long++
		}
	}
	if p.packer == nil {
		return rows + int64(len(p.remainders)), long, nil
	}
	p.packer.pack(p.remainders)
	return rows + int64(len(p.packer.segmentCounts)), long, nil
}

// layOut builds p.rowGroup from the group that was loaded last.
func (r *documentRows) layOut(p *groupPacker) {
	p.nextSegment = append(p.nextSegment[:0], p.remainders...) // at most this many rows
	clear(p.nextSegment)
	p.rowRuns, p.segments = p.rowRuns[:0], p.segments[:0]
	rows, shortSegments := int64(0), 0
	begin := func(count int64, segments int32) (first int32) {
		first = int32(len(p.segments))
		p.rowRuns = append(p.rowRuns, rowRun{rows, first})
		p.segments = append(p.segments, make([]groupSegment, segments)...)
		rows += count
		return first
	}
	for i, end := range p.bounds[1:] {
		start := p.bounds[i]
		full, short := r.cut(end - start)
		if full > 0 {
			p.segments[begin(full, 1)] = groupSegment{start, int32(r.len), int16(i), false}
		}
		if short == 0 {
			continue
		}
		into, segments := shortSegments, int32(1)
		if p.packer != nil {
			into = int(p.packer.rowOf[shortSegments])
			segments = p.packer.segmentCounts[into]
		}
		if p.nextSegment[into] == 0 {
			p.nextSegment[into] = begin(1, segments) + 1
		}
		p.segments[p.nextSegment[into]-1] = groupSegment{start + full*r.stride, short, int16(i), full > 0}
		p.nextSegment[into]++
		shortSegments++
	}
	begin(0, 0)
}

func (r *documentRows) segments(list []Segment, row int64) ([]Segment, error) {
	number, inGroup := r.sums.find(row)
	g, err := r.loadGroup(int64(number))
	if err != nil {
		return list, err
	}
	i := sort.Search(len(g.rowRuns), func(i int) bool { return g.rowRuns[i].row > inGroup }) - 1
	index, shift := 0, (inGroup-g.rowRuns[i].row)*r.stride
	for _, s := range g.segments[g.rowRuns[i].firstSegment:g.rowRuns[i+1].firstSegment] {
		document, inserted := int64(number)*groupDocuments+int64(s.document), r.bos && (s.continues || shift > 0)
		list = append(list, Segment{s.start + shift, int(s.len), index, document, inserted})
		index += int(s.len)
	}
	return list, nil
}

func (r *documentRows) appendDocuments(ends []int, numbers []int64, row []Segment) ([]int, []int64, error) {
	for _, s := range row {
		ends, numbers = append(ends, s.At+s.Len), append(numbers, s.Document)
	}
	return ends, numbers, nil
}

// rowsHolding returns one row, two if the token ends a segment and begins the next, or none if the
// rows of its document end before it. A token that BOS replaces only ends a segment.
func (r *documentRows) rowsHolding(pos int64) (list []rowRange, err error) {
	document, err := r.documents.NumberAt(pos)
	if err != nil {
		return nil, err
	}
	number := int(document / groupDocuments)
	var segments []Segment
	for row := r.sums.before(number); row < r.sums[number]; row++ {
		if segments, err = r.segments(segments[:0], row); err != nil {
			return nil, err
		}
		for _, s := range segments {
			s = s.Copied()
			if offset := pos - s.Start; offset >= 0 && offset < int64(s.Len) {
				list = append(list, rowRange{row, row + 1, row + int64(s.At) + offset})
			}
		}
	}
	return list, nil
}

func (r *documentRows) counts() RowCounts { return RowCounts{r.sums, r.long} }

func (r *documentRows) loadGroup(number int64) (*rowGroup, error) {
	if found := r.cached[number].Load(); found != nil {
		return found, nil
	}
	p := r.packerPool.Get().(*groupPacker)
	defer r.packerPool.Put(p)
	if _, _, err := r.load(p, number); err != nil {
		return nil, fmt.Errorf("documents %d to %d: %w", number*groupDocuments, min((number+1)*groupDocuments, r.documents.Count())-1, err)
	}
	r.layOut(p)
	g := &rowGroup{slices.Clone(p.rowRuns), slices.Clone(p.segments)}
	cacheTable(r.tables, &r.cached[number], g, 16*int64(len(g.rowRuns)+len(g.segments)))
	return g, nil
}
