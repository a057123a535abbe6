package sampler

import (
	"cmp"
	"fmt"
	"runtime"
	"sort"
	"sync"
)

// A Segment is tokens of one document that stand side by side in a row.
type Segment struct {
	Start    int64 // position in the source of its first token
	Len      int   // tokens
	At       int   // index in the row of its first token
	Document int64 // its number in the source; -1: unknown
}

// segmentRows are rows made of documents, in the order of their first tokens. Documents are laid into rows in groups, so that a row needs
// one group only, and only the number of rows of each group is kept.
type segmentRows struct {
	documents Documents
	cut       cut
	sums      prefixSums // of each group's rows
	packers   sync.Pool  // of *groupPacker, each for one group at a time
	made      *shelf[*group]
}

// Larger groups waste less of a row, and take more memory and time to make.
const groupDocuments = 4096

type cut struct {
	rows Rows
	t    int64 // block size
}

// segments says into what a document of n tokens is cut: segments of T+1 tokens, T apart, and a shorter rest. A rest of one token is
// left out, unless it is the whole document: it is the last token of the segment before.
func (c cut) segments(n int64) (full int64, rest int32) {
	if n <= c.t {
		return 0, int32(n)
	}
	full = (n - 1) / c.t
	if rest = int32(n - full*c.t); rest == 1 {
		rest = 0
	}
	if c.rows == DocumentFirst {
		return 1, 0
	}
	return full, rest
}

// A group is never written once it is made.
type group struct {
	entries  []entry // by row
	segments []groupSegment
	rows     int64
}

// An entry is one row, or several full rows of a document, T tokens apart.
type entry struct {
	row   int64 // the first, in the group
	first int32 // its first segment
}

type groupSegment struct {
	start    int64
	len      int32
	document int32 // in the group
}

// newSegmentRows counts the rows of a source, unless sums are what it counted before.
func newSegmentRows(documents Documents, c cut, sums prefixSums, tables *Tables) (*segmentRows, error) {
	r := &segmentRows{documents: documents, cut: c, sums: sums}
	r.packers.New = func() any {
		p := &groupPacker{bounds: make([]int64, groupDocuments+1)}
		if c.rows == Packed {
			p.packer = newPacker(int(c.t) + 1)
		}
		return p
	}
	groups := int((documents.Count() + groupDocuments - 1) / groupDocuments)
	r.made = newShelf[*group](tables, groups)
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

func (r *segmentRows) rows() int64 { return r.sums[len(r.sums)-1] }

type groupPacker struct {
	bounds []int64 // the first token of the group, and the end of each document
	long   int     // documents with full rows
	rests  []int32 // lengths of the segments shorter than a row
	packer *packer // of packed rows, else nil
	next   []int32 // of each row that is not full: where its next segment goes, or -1
}

// load reads where the documents of group g lie, cuts and packs them. It returns how many rows they have.
func (r *segmentRows) load(p *groupPacker, g int64) (rows int64, err error) {
	first := g * groupDocuments
	n := min(r.documents.Count()-first, groupDocuments)
	p.bounds, p.bounds[0] = p.bounds[:n+1], 0
	if first > 0 {
		err = r.documents.Ends(first-1, p.bounds)
	} else {
		err = r.documents.Ends(0, p.bounds[1:])
	}
	if err != nil {
		return 0, err
	}
	p.long, p.rests = 0, p.rests[:0]
	for i, end := range p.bounds[1:] {
		more, rest := r.cut.segments(end - p.bounds[i])
		if rows += more; more > 0 {
			p.long++
		}
		if rest > 0 {
			p.rests = append(p.rests, rest)
		}
	}
	if p.packer != nil {
		p.packer.pack(p.rests)
	}
	return rows + int64(p.rowsOfRests()), nil
}

func (p *groupPacker) rowsOfRests() int {
	if p.packer != nil {
		return len(p.packer.count)
	}
	return len(p.rests)
}

func (r *segmentRows) make(g int64) (*group, error) {
	p := r.packers.Get().(*groupPacker)
	defer r.packers.Put(p)
	if _, err := r.load(p, g); err != nil {
		return nil, err
	}
	made := &group{entries: make([]entry, 0, p.long+p.rowsOfRests()), segments: make([]groupSegment, 0, p.long+len(p.rests))}
	p.next = append(p.next[:0], p.rests...) // as many rows as that at most
	for i := range p.next {
		p.next[i] = -1
	}
	begin := func(segments int32) (first int32) {
		first = int32(len(made.segments))
		made.entries = append(made.entries, entry{made.rows, first})
		made.segments = made.segments[:first+segments]
		return first
	}
	rest := 0
	for i, end := range p.bounds[1:] {
		start := p.bounds[i]
		full, short := r.cut.segments(end - start)
		if full > 0 {
			made.segments[begin(1)] = groupSegment{start, int32(r.cut.t + 1), int32(i)}
			made.rows += full
		}
		if short == 0 {
			continue
		}
		into, segments := rest, int32(1)
		if p.packer != nil {
			into = int(p.packer.row[rest])
			segments = p.packer.count[into]
		}
		if p.next[into] < 0 {
			p.next[into] = begin(segments)
			made.rows++
		}
		made.segments[p.next[into]] = groupSegment{start + full*r.cut.t, short, int32(i)}
		p.next[into]++
		rest++
	}
	return made, nil
}

// entry returns the segments of entry i, without At, and how many rows it is.
func (g *group) entry(i int) (segments []groupSegment, rows int64) {
	end, next := len(g.segments), g.rows
	if i+1 < len(g.entries) {
		end, next = int(g.entries[i+1].first), g.entries[i+1].row
	}
	return g.segments[g.entries[i].first:end], next - g.entries[i].row
}

// at calls visit for each segment of a row, in the order in which they stand there.
func (r *segmentRows) at(row int64, visit func(Segment) error) error {
	number, in := r.sums.find(row)
	g, err := r.group(int64(number))
	if err != nil {
		return err
	}
	i := sort.Search(len(g.entries), func(i int) bool { return g.entries[i].row > in }) - 1
	segments, _ := g.entry(i)
	slot, shift := 0, (in-g.entries[i].row)*r.cut.t
	for _, p := range segments {
		if err := visit(Segment{p.start + shift, int(p.len), slot, int64(number)*groupDocuments + int64(p.document)}); err != nil {
			return err
		}
		slot += int(p.len)
	}
	return nil
}

// holding are the rows that hold the token at a position, and where in them: one, two where the token ends a segment and begins
// the next, or none of a document that is cut off.
func (r *segmentRows) holding(pos int64) (list []place, err error) {
	document, err := r.documents.Of(pos)
	if err != nil {
		return nil, err
	}
	number := document / groupDocuments
	g, err := r.group(number)
	if err != nil {
		return nil, err
	}
	before := r.sums[number] - g.rows
	for i, e := range g.entries {
		segments, rows := g.entry(i)
		slot := int64(0)
		for _, p := range segments {
			if in := pos - p.start; in >= 0 && int64(p.document) == document-number*groupDocuments {
				// Only full rows are several: their segments begin T apart, and share a token.
				for row := max((in-int64(p.len)+r.cut.t)/r.cut.t, 0); row < rows && row*r.cut.t <= in; row++ {
					if index := in - row*r.cut.t; index < int64(p.len) {
						list = append(list, place{before + e.row + row, int(slot + index)})
					}
				}
			}
			slot += int64(p.len)
		}
	}
	return list, nil
}

// A place is where a token stands: a row of its source, and the index in it.
type place struct {
	row   int64
	index int
}

func (r *segmentRows) group(g int64) (*group, error) {
	if found, ok := r.made.get(g); ok {
		return found, nil
	}
	made, err := r.make(g)
	if err != nil {
		return nil, fmt.Errorf("documents %d to %d: %w", g*groupDocuments, min((g+1)*groupDocuments, r.documents.Count())-1, err)
	}
	r.made.put(g, 16*int64(len(made.entries)+len(made.segments)), made)
	return made, nil
}
