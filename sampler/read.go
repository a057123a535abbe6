package sampler

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"batchfs/cache/array"
)

// A readJob is one Read.
type readJob struct {
	sequence *Sequence
	dst      []byte
	plans    []plan    // one for each array of each source, source after source
	planned  int       // segments of the rows of all plans
	plan     *plan     // plan of the array that is being read
	column   int       // number of that array in its source
	rows     []span    // rows of the batch being planned that dst shows, for each part
	edge     []byte    // numbers at an end of dst, which shows the first or the last of them in part
	ends     []int     // for planned rows, the indexes behind the last tokens of documents
	segments []Segment // segments of the row being planned

	visit func(i int, raw []byte) error // copyRow, made once because to make it is to allocate
}

var readJobs = sync.Pool{New: func() any {
	req := new(readJob)
	req.visit = req.copyRow
	return req
}}

// A plan is the windows to be fetched of one array; rows[i] is what windows[i] is fetched for.
type plan struct {
	windows []array.Window
	rows    []row
}

// A row is one of a batch that dst shows, at least in part.
type row struct {
	base   int // byte of dst at which the row's batch begins; it may lie before dst
	j      int // number of the row in the batch
	source int
	ends   span // in readJob.ends
	first  int  // index in the row of the first number of a window
}

// A view is what dst shows of the numbers of a part in one row.
type view struct {
	*batchArray
	at   int // byte of dst at which the first number of the part begins in the row; it may lie before dst
	span     // the numbers shown
}

func (req *readJob) view(p *batchArray, base, j int) view {
	at := p.row(base, j)
	return view{p, at, overlap(at, p.size, p.len, len(req.dst))}
}

// A span is [from, to).
type span struct{ from, to int }

func (s span) empty() bool { return s.from >= s.to }

// overlap returns which of count units have bytes in [0, n). The units are size bytes each, one after the other from byte at on; at may be negative.
func overlap(at, size, count, n int) span {
	if at >= 0 && at+size*count <= n {
		return span{0, count} // as most are, without a division
	}
	from := min(max(0, -at/size), count)
	return span{from, min(count, max(from, (n-at+size-1)/size))}
}

// maxPlanned is how many rows are planned at a time, which bounds the memory of a request for many short rows.
const maxPlanned = 1 << 10

// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. off may be beyond that batch. It
// fails if files cannot be read, a number does not suit the dtype or the vocabulary, or there is no such batch; dst is then undefined.
func (q *Sequence) Read(dst []byte, k uint64, off int64) error {
	if len(dst) == 0 {
		return nil
	}
	req := readJobs.Get().(*readJob) // nothing is planned in it
	req.sequence, req.dst = q, dst
	// Plans behind the last one keep the memory of their windows.
	arrays := len(q.sources) * len(q.layout.columns)
	req.plans = slices.Grow(req.plans[:0], arrays)[:arrays]
	size := q.layout.batch.Bytes()
	k, off = k+uint64(off/size), off%size
	for base := -int(off); base < len(dst); base, k = base+int(size), k+1 {
		if k >= MaxBatches {
			return fmt.Errorf("batch %d: numbers end at %d", k, uint64(MaxBatches-1))
		}
		if err := req.planBatch(k, base); err != nil {
			return err
		}
	}
	if err := req.fetch(); err != nil {
		return err
	}
	req.sequence, req.dst = nil, nil // the pool must not keep them from the collector
	readJobs.Put(req)
	return nil
}

// Windows calls visit for the windows that batch k needs of each source's arrays, row after row, until it returns false. It returns false if
// visit did, or if it cannot be read where documents end. There are no windows beyond the last batch.
func (q *Sequence) Windows(k uint64, visit func(source, column int, w array.Window) bool) bool {
	if k >= MaxBatches {
		return true
	}
	req := readJobs.Get().(*readJob) // for the memory of its segments
	defer readJobs.Put(req)
	for j := range q.BatchSize {
		source, start := q.Start(k, j)
		from := &q.sources[source]
		var err error
		if req.segments, err = from.starts.segments(req.segments[:0], start); err != nil {
			return false
		}
		for _, p := range req.segments {
			for c, column := range q.layout.columns {
				if !visit(source, c, array.Window{Start: p.Start * int64(column.numbers), Len: p.Len * column.numbers}) {
					return false
				}
			}
		}
	}
	return true
}

// fetch reads what is planned. If it fails, the request cannot be used again.
func (req *readJob) fetch() error {
	q, columns := req.sequence, len(req.sequence.layout.columns)
	for i := range req.plans {
		p := &req.plans[i]
		if len(p.windows) == 0 {
			continue
		}
		req.plan, req.column = p, i%columns
		if err := q.sources[i/columns].arrays[req.column].Read(p.windows, req.visit); err != nil {
			return err
		}
		p.windows, p.rows = p.windows[:0], p.rows[:0]
	}
	req.planned, req.ends = 0, req.ends[:0]
	return nil
}

// planBatch plans the rows that dst shows of batch k, which begins at byte base of dst. It fetches when there are many.
func (req *readJob) planBatch(k uint64, base int) error {
	req.rows = req.rows[:0]
	for i := range req.sequence.layout.list {
		p := &req.sequence.layout.list[i]
		shown := overlap(p.row(base, 0), p.rowBytes(), req.sequence.BatchSize, len(req.dst))
		for j := shown.from; j < shown.to; j++ {
			if slices.ContainsFunc(req.rows, func(s span) bool { return j >= s.from && j < s.to }) {
				continue // it is planned
			}
			if req.planned >= maxPlanned {
				if err := req.fetch(); err != nil {
					return err
				}
			}
			if err := req.planRow(k, row{base: base, j: j}); err != nil {
				return err
			}
		}
		req.rows = append(req.rows, shown)
	}
	return nil
}

func (req *readJob) planRow(k uint64, r row) (err error) {
	q := req.sequence
	source, start := q.Start(k, r.j)
	rows := q.sources[source].starts
	if req.segments, err = rows.segments(req.segments[:0], start); err != nil {
		return err
	}
	r.source, r.ends = source, span{len(req.ends), len(req.ends)}
	if q.needsEnds() && q.Ends == EndsByIndex {
		if req.ends, err = rows.ends(req.ends, req.segments); err != nil {
			return err
		}
		r.ends.to = len(req.ends)
	}
	used := 0
	for _, p := range req.segments {
		req.planWindows(r, p.Start-int64(p.At), span{p.At, p.At + p.Len})
		used = p.At + p.Len
	}
	req.planned += len(req.segments)
	if q.layout.derives {
		req.putRow(r, used)
	}
	return nil
}

// planWindows plans the windows for what dst shows of some indexes of a row, which lie side by side in its source. start is where index 0 would be.
func (req *readJob) planWindows(r row, start int64, indexes span) {
	q := req.sequence
	for c, column := range q.layout.columns {
		lo, hi := math.MaxInt, 0
		for i := range q.layout.list {
			v := req.view(&q.layout.list[i], r.base, r.j)
			switch {
			case v.empty():
			case v.derived == copied && v.column == c:
				lo, hi = min(lo, v.first+v.from), max(hi, v.first+v.to)
				if v.masked && q.Ends == EndsByToken {
					lo = min(lo, v.from) // the token before a target may be the last of its document
				}
			case c == 0 && q.Ends == EndsByToken && v.ofDocuments():
				lo, hi = 0, max(hi, q.BlockSize) // any token may be the last of a document
			}
		}
		lo, hi = max(lo, indexes.from*column.numbers), min(hi, indexes.to*column.numbers)
		if lo >= hi {
			continue
		}
		r.first = lo
		to := &req.plans[r.source*len(q.layout.columns)+c]
		to.windows = append(to.windows, array.Window{Start: start*int64(column.numbers) + int64(lo), Len: hi - lo})
		to.rows = append(to.rows, r)
	}
}

// putRow puts the numbers of a row that are in no file. used is how many of its indexes have tokens.
func (req *readJob) putRow(r row, used int) {
	q := req.sequence
	for i := range q.layout.list {
		v := req.view(&q.layout.list[i], r.base, r.j)
		switch {
		case v.empty():
		case v.derived == copied:
			v.from = max(v.from, used*q.layout.columns[v.column].numbers-v.first)
			req.putSame(v, v.filler)
		case v.derived == tokensOfRow:
			req.putSame(v, int64(min(used, q.BlockSize)))
		case v.derived == sourceOfRow:
			req.putSame(v, int64(r.source))
		case v.ofDocuments() && q.Ends != EndsByToken:
			req.putDocuments(v, req.ends[r.ends.from:r.ends.to])
		}
	}
}

// copyRow puts the numbers of window i of the current array where dst shows them.
func (req *readJob) copyRow(i int, raw []byte) error {
	q := req.sequence
	column, r, start := q.layout.columns[req.column], req.plan.rows[i], req.plan.windows[i].Start
	ends := req.ends[r.ends.from:r.ends.to]
	if req.column == 0 {
		if bad := q.sources[r.source].vocab.find(raw); bad >= 0 {
			tokens := q.sources[r.source].arrays[0]
			return &array.VocabularyError{Location: tokens.Locate(start + int64(bad)), Token: column.text(raw, bad), Size: tokens.VocabSize()}
		}
		if q.needsEnds() && q.Ends == EndsByToken {
			req.ends = q.sources[r.source].vocab.appendEnds(req.ends[:0], raw, q.EOT, r.first)
			ends = req.ends
		}
	}
	for n := range q.layout.list {
		v := req.view(&q.layout.list[n], r.base, r.j)
		if v.ofDocuments() && req.column == 0 && q.Ends == EndsByToken && !v.empty() {
			req.putDocuments(v, ends)
		}
		v.span = span{max(v.from, r.first-v.first), min(v.to, r.first+len(raw)/column.width-v.first)}
		if v.derived != copied || v.column != req.column || v.empty() {
			continue
		}
		first := v.first + v.from - r.first // of the part's numbers in raw
		whole := req.space(v)
		if bad := v.convert(whole, raw[first*column.width:][:(v.to-v.from)*column.width]); bad >= 0 {
			return q.overflow(r.source, req.column, start+int64(first+bad), column.text(raw, first+bad), v.dtype)
		}
		if req.copyOut(v, whole); v.masked {
			req.mask(v, ends)
		}
	}
	return nil
}

// space is where to put the numbers of a view: in dst, or beside it where the first or the last lies in dst in part.
func (req *readJob) space(v view) []byte {
	at, n := v.at+v.from*v.size, (v.to-v.from)*v.size
	if at >= 0 && at+n <= len(req.dst) {
		return req.dst[at : at+n]
	}
	req.edge = slices.Grow(req.edge[:0], n)[:n]
	return req.edge
}

// copyOut copies to dst what was put beside it.
func (req *readJob) copyOut(v view, whole []byte) {
	if at := v.at + v.from*v.size; at < 0 || at+len(whole) > len(req.dst) {
		copy(req.dst[max(at, 0):], whole[max(-at, 0):])
	}
}

// mask marks the targets of a view that are not of the document of the token before.
func (req *readJob) mask(v view, ends []int) {
	first, _ := slices.BinarySearch(ends, v.from+1)
	last, _ := slices.BinarySearch(ends, v.to+1)
	for _, end := range ends[first:last] {
		req.putSame(view{v.batchArray, v.at, span{end - 1, end}}, maskedTarget)
	}
}

func (req *readJob) putDocuments(v view, ends []int) {
	t := req.sequence.BlockSize
	from, to := v.from, v.to
	whole := req.space(v)
	numbers := as[int32](whole)
	if v.derived == documentEnds {
		for i := range numbers {
			numbers[i] = int32(t)
			if column := from + i; column == 0 {
				numbers[i] = 0
			} else if column <= len(ends) {
				numbers[i] = int32(min(ends[column-1], t))
			}
		}
	} else {
		for begin, next := 0, 0; begin < to; next++ {
			end := to
			if next < len(ends) {
				end = min(ends[next], to)
			}
			for column := max(begin, from); column < end; column++ {
				numbers[column-from] = int32(column - begin)
			}
			begin = end
		}
	}
	req.copyOut(v, whole)
}

func (req *readJob) putSame(v view, value int64) {
	if v.empty() {
		return
	}
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(value))
	whole := req.space(v)
	for done := copy(whole, number[:v.size]); done < len(whole); done *= 2 {
		copy(whole[done:], whole[:done])
	}
	req.copyOut(v, whole)
}

// overflow is the error for number i of an array of a source.
func (q *Sequence) overflow(source, column int, i int64, value string, dtype array.DType) error {
	at := q.sources[source].arrays[column].Locate(i / int64(q.layout.columns[column].numbers))
	what := "token"
	if q.Layout == Elements {
		what = "a number of element"
	}
	return fmt.Errorf("%s: %s %d is %s, which dtype %s cannot hold; set dtype to one that can, e.g. native",
		at.Path, what, at.Index, value, dtype)
}
