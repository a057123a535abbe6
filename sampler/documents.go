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

// A Segment is tokens of one document that stand side by side in a row.
type Segment struct {
	Start    int64 // position in the source of its first token
	Len      int   // tokens
	At       int   // index in the row of its first token
	Document int64 // its number in the source; -1: unknown
}

// documentRows are rows made of documents, in the order of their first tokens. Documents are laid
// into rows in groups, so that a row needs one group only, and only the number of rows of each
// group is kept.
type documentRows struct {
	documents Documents
	windowSpec
	sums    prefixSums // of each group's rows
	packers sync.Pool  // of *groupPacker, each for one group at a time
	tables  *Tables
	cached  []atomic.Pointer[group] // by group; nil: it is not in memory
}

// Larger groups waste less of a row, and take more memory and time to make.
const groupDocuments = 4096

// cut returns into what a document of n tokens is cut: full segments of T+1 tokens, T apart, and a
// shorter rest. A rest of one token is left out, unless it is the whole document: it is the last
// token of the segment before.
func (w windowSpec) cut(n int64) (full int64, rest int32) {
	if n <= w.step {
		return 0, int32(n)
	}
	full = (n - 1) / w.step
	if rest = int32(n - full*w.step); rest == 1 {
		rest = 0
	}
	if w.rows == DocumentFirst {
		return 1, 0
	}
	return full, rest
}

// A group is never written once it is kept.
type group struct {
	rowRuns  []rowRun // by row; behind the last one, an entry that ends it
	segments []groupSegment
}

// A rowRun is one row, or several full rows of a document, T tokens apart.
type rowRun struct {
	row   int64 // the first, in the group
	first int32 // its first segment
}

type groupSegment struct {
	start    int64
	len      int32
	document int32 // in the group
}

// newDocumentRows counts the rows of a source, unless sums are what it counted before.
func newDocumentRows(documents Documents, w windowSpec, sums prefixSums, tables *Tables) (*documentRows, error) {
	groups := int((documents.Count() + groupDocuments - 1) / groupDocuments)
	r := &documentRows{documents: documents, windowSpec: w, sums: sums, tables: tables, cached: make([]atomic.Pointer[group], groups)}
	r.packers.New = func() any {
		p := &groupPacker{bounds: make([]int64, groupDocuments+1)}
		if w.rows == Packed {
			p.packer = newPacker(int(w.len))
		}
		return p
	}
	if len(sums) == groups {
		return r, nil
	}
	r.sums = make(prefixSums, groups)
	workers := min(runtime.GOMAXPROCS(0), groups)
	errs := make([]error, workers)
	var counting sync.WaitGroup
	for i := range workers {
		counting.Go(func() {
			p := r.packers.Get().(*groupPacker)
			defer r.packers.Put(p)
			for g := i; g < groups && errs[i] == nil; g += workers {
				r.sums[g], errs[i] = r.load(p, int64(g))
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
	return r, nil
}

// A groupPacker makes one group after the other, in the same memory.
type groupPacker struct {
	group
	bounds []int64 // the first token of the group, and the end of each document
	rests  []int32 // lengths of the segments shorter than a row
	packer *packer // of packed rows, else nil
	next   []int32 // of each row of these: one more than where its next segment goes, or 0
}

// load reads where the documents of group g lie, cuts and packs them. It returns how many rows they have.
func (r *documentRows) load(p *groupPacker, g int64) (rows int64, err error) {
	first := g * groupDocuments
	n := min(r.documents.Count()-first, groupDocuments)
	p.bounds, p.bounds[0] = p.bounds[:n+1], 0
	// The group begins where the one before ends, and the first group at 0.
	if err := r.documents.Ends(max(first-1, 0), p.bounds[1-min(g, 1):]); err != nil {
		return 0, err
	}
	p.rests = p.rests[:0]
	for i, end := range p.bounds[1:] {
		full, rest := r.cut(end - p.bounds[i])
		if rows += full; rest > 0 {
			p.rests = append(p.rests, rest)
		}
	}
	if p.packer == nil {
		return rows + int64(len(p.rests)), nil
	}
	p.packer.pack(p.rests)
	return rows + int64(len(p.packer.count)), nil
}

// lay lays the documents that were loaded into the rows of p.group.
func (r *documentRows) lay(p *groupPacker) {
	p.next = append(p.next[:0], p.rests...) // as many rows as that at most
	clear(p.next)
	p.rowRuns, p.segments = p.rowRuns[:0], p.segments[:0]
	rows, rest := int64(0), 0
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
			p.segments[begin(full, 1)] = groupSegment{start, int32(r.len), int32(i)}
		}
		if short == 0 {
			continue
		}
		into, segments := rest, int32(1)
		if p.packer != nil {
			into = int(p.packer.row[rest])
			segments = p.packer.count[into]
		}
		if p.next[into] == 0 {
			p.next[into] = begin(1, segments) + 1
		}
		p.segments[p.next[into]-1] = groupSegment{start + full*r.step, short, int32(i)}
		p.next[into]++
		rest++
	}
	begin(0, 0)
}

func (r *documentRows) segments(list []Segment, row int64) ([]Segment, error) {
	number, in := r.sums.find(row)
	g, err := r.group(int64(number))
	if err != nil {
		return list, err
	}
	i := sort.Search(len(g.rowRuns), func(i int) bool { return g.rowRuns[i].row > in }) - 1
	slot, shift := 0, (in-g.rowRuns[i].row)*r.step
	for _, p := range g.segments[g.rowRuns[i].first:g.rowRuns[i+1].first] {
		list = append(list, Segment{p.start + shift, int(p.len), slot, int64(number)*groupDocuments + int64(p.document)})
		slot += int(p.len)
	}
	return list, nil
}

func (r *documentRows) ends(list []int, row []Segment) ([]int, error) {
	for _, p := range row {
		list = append(list, p.At+p.Len)
	}
	return list, nil
}

// holding returns one row, two if the token ends a segment and begins the next, or none if its
// document is cut off before it.
func (r *documentRows) holding(pos int64) (list []rowRange, err error) {
	document, err := r.documents.Of(pos)
	if err != nil {
		return nil, err
	}
	number := int(document / groupDocuments)
	var segments []Segment
	for row := r.sums.before(number); row < r.sums[number]; row++ {
		if segments, err = r.segments(segments[:0], row); err != nil {
			return nil, err
		}
		for _, p := range segments {
			if in := pos - p.Start; in >= 0 && in < int64(p.Len) {
				list = append(list, rowRange{row, row + 1, row + int64(p.At) + in})
			}
		}
	}
	return list, nil
}

func (r *documentRows) groups() []int64 { return r.sums }

func (r *documentRows) group(g int64) (*group, error) {
	if found := r.cached[g].Load(); found != nil {
		return found, nil
	}
	p := r.packers.Get().(*groupPacker)
	defer r.packers.Put(p)
	if _, err := r.load(p, g); err != nil {
		return nil, fmt.Errorf("documents %d to %d: %w", g*groupDocuments, min((g+1)*groupDocuments, r.documents.Count())-1, err)
	}
	r.lay(p)
	made := &group{slices.Clone(p.rowRuns), slices.Clone(p.segments)}
	cacheTable(r.tables, &r.cached[g], made, 16*int64(len(made.rowRuns)+len(made.segments)))
	return made, nil
}
