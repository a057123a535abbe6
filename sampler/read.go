package sampler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"batchfs/cache/array"
)

// A readJob is one call of Read. It plans windows for many rows, and then reads them array by
// array.
type readJob struct {
	sequence        *Sequence
	dst             []byte
	plans           []arrayPlan // one per array of each source
	plannedSegments int
	plan            *arrayPlan // plan of the array being read
	column          int        // number of that array in its source
	plannedRows     []interval // rows of the current batch, one interval per batch array
	edgeBuffer      []byte     // numbers that are partly outside dst
	ends            []int      // ends of documents in planned rows, as indexes in the row
	segments        []Segment  // segments of the row being planned
	numbers         []int64    // numbers of the documents in that row

	copyRowFunc func(i int, raw []byte) error // copyRow; stored because a method value allocates
}

var readJobs = sync.Pool{New: func() any {
	job := new(readJob)
	job.copyRowFunc = job.copyRow
	return job
}}

// An arrayPlan lists the windows to read from one array. windows[i] belongs to rows[i].
type arrayPlan struct {
	windows []array.Window
	rows    []plannedRow
}

// A plannedRow is a row of a batch that overlaps dst.
type plannedRow struct {
	batchOffset int // offset in dst of its batch; may be negative
	j           int // number of the row in the batch
	source      int
	ends        interval // range of readJob.ends
	windowFirst int      // index in the row of its window's first number
	documentAt  int      // index of the window's document if it must begin with BOS; otherwise -1
}

// A rowPart is the part of a batch array's row that overlaps dst.
type rowPart struct {
	*batchArray
	offset   int // offset in dst of the row in the array; may be negative
	interval     // range of numbers
}

func (job *readJob) partOf(a *batchArray, base, j int) rowPart {
	offset := a.rowOffset(base, j)
	return rowPart{a, offset, itemsInside(offset, a.numberBytes, a.rowNumbers, len(job.dst))}
}

// An interval is half-open: [from, to).
type interval struct{ from, to int }

func (s interval) empty() bool { return s.from >= s.to }

// itemsInside returns which of count items, of size bytes each, have bytes in [0, n). The first
// begins at offset, which may be negative.
func itemsInside(offset, size, count, n int) interval {
	if offset >= 0 && offset+size*count <= n {
		return interval{0, count} // the usual case, without a division
	}
	from := min(max(0, -offset/size), count)
	return interval{from, min(count, max(from, (n-offset+size-1)/size))}
}

// maxPlanned limits the segments planned at a time, and so the memory of a read of many short rows.
const maxPlanned = 1 << 10

// Read fills dst with the bytes of batches k, k+1, …, starting off bytes after the beginning of
// batch k. It fails if files cannot be read, a batch does not exist, a number does not fit the
// dtype, a document does not begin with BOS, or a token is not in the vocabulary
// (*array.VocabularyError); dst is then undefined.
func (q *Sequence) Read(dst []byte, k uint64, off int64) error {
	if len(dst) == 0 {
		return nil
	}
	job := readJobs.Get().(*readJob)
	job.sequence, job.dst = q, dst
	// Reuse the memory of earlier plans.
	arrays := len(q.sources) * len(q.layout.columns)
	job.plans = slices.Grow(job.plans[:0], arrays)[:arrays]
	size := q.layout.batch.Bytes()
	k, off = k+uint64(off/size), off%size
	for base := -int(off); base < len(dst); base, k = base+int(size), k+1 {
		if k >= q.batches {
			return fmt.Errorf("there is no batch %d: the last one is %d", k, q.batches-1)
		}
		if err := job.planBatch(k, base); err != nil {
			return err
		}
	}
	if err := job.readPlanned(); err != nil {
		return err
	}
	job.sequence, job.dst = nil, nil // lets them be collected
	readJobs.Put(job)
	return nil
}

// readPlanned reads the planned windows. After an error, the job must not be used again.
func (job *readJob) readPlanned() error {
	q, columns := job.sequence, len(job.sequence.layout.columns)
	for i := range job.plans {
		p := &job.plans[i]
		if len(p.windows) == 0 {
			continue
		}
		job.plan, job.column = p, i%columns
		if err := q.sources[i/columns].arrays[job.column].Read(p.windows, job.copyRowFunc); err != nil {
			return err
		}
		p.windows, p.rows = p.windows[:0], p.rows[:0]
	}
	job.plannedSegments, job.ends = 0, job.ends[:0]
	return nil
}

// planBatch plans the rows of batch k, which begins at offset base of dst. It calls readPlanned
// whenever maxPlanned segments are planned.
func (job *readJob) planBatch(k uint64, base int) error {
	job.plannedRows = job.plannedRows[:0]
	for i := range job.sequence.layout.arrays {
		a := &job.sequence.layout.arrays[i]
		overlapping := itemsInside(a.rowOffset(base, 0), a.rowBytes(), job.sequence.BatchSize, len(job.dst))
		for j := overlapping.from; j < overlapping.to; j++ {
			if slices.ContainsFunc(job.plannedRows, func(s interval) bool { return j >= s.from && j < s.to }) {
				continue // planned for an earlier array
			}
			if job.plannedSegments >= maxPlanned {
				if err := job.readPlanned(); err != nil {
					return err
				}
			}
			if err := job.planRow(k, plannedRow{batchOffset: base, j: j}); err != nil {
				return err
			}
		}
		job.plannedRows = append(job.plannedRows, overlapping)
	}
	return nil
}

// planRow plans the windows of row r.j of batch k, and writes its derived numbers.
func (job *readJob) planRow(k uint64, r plannedRow) (err error) {
	q := job.sequence
	source, start := q.Start(k, r.j)
	from := &q.sources[source]
	rows := from.starts.rows
	if job.segments, err = rows.segments(job.segments[:0], start); err != nil {
		return err
	}
	r.source, r.ends = source, interval{len(job.ends), len(job.ends)}
	if q.needsEnds() && from.documents != nil {
		if job.ends, job.numbers, err = rows.appendDocuments(job.ends, job.numbers[:0], job.segments); err != nil {
			return err
		}
		r.ends.to = len(job.ends)
	}
	used := 0
	for _, s := range job.segments {
		r.documentAt = -1
		if q.BOS != nil && !s.Inserted {
			r.documentAt = s.At
		}
		s = s.Copied()
		job.planWindows(r, s.Start-int64(s.At), interval{s.At, s.At + s.Len})
		used = s.At + s.Len
	}
	job.plannedSegments += len(job.segments)
	if q.layout.hasDerived {
		job.putDerived(r, used)
	}
	return nil
}

// planWindows plans the windows that dst needs from adjacent indexes of a row. Index 0 would be at
// position start of the source.
func (job *readJob) planWindows(r plannedRow, start int64, indexes interval) {
	q := job.sequence
	byToken := q.EndsByToken(r.source)
	for c, column := range q.layout.columns {
		lo, hi := math.MaxInt, 0
		for i := range q.layout.arrays {
			p := job.partOf(&q.layout.arrays[i], r.batchOffset, r.j)
			switch {
			case p.empty():
			case p.content == contentFile && (p.column == c || c > 0 && p.maskColumn == c):
				lo, hi = min(lo, p.firstNumber+p.from), max(hi, p.firstNumber+p.to)
				if p.masked && byToken {
					lo = min(lo, p.from) // the token before a target may end its document
				}
			case c == 0 && byToken && p.isFromDocuments():
				lo, hi = 0, max(hi, q.BlockSize) // any token may end a document
			}
		}
		lo, hi = max(lo, indexes.from*column.elementNumbers), min(hi, indexes.to*column.elementNumbers)
		if lo >= hi {
			continue
		}
		r.windowFirst = lo
		to := &job.plans[r.source*len(q.layout.columns)+c]
		to.windows = append(to.windows, array.Window{Start: start*int64(column.elementNumbers) + int64(lo), Len: hi - lo})
		to.rows = append(to.rows, r)
	}
}

// copyRow checks window i of the current plan, of which raw has the bytes, and writes to dst what
// the batch needs of it.
func (job *readJob) copyRow(i int, raw []byte) error {
	q, r, start := job.sequence, &job.plan.rows[i], job.plan.windows[i].Start
	if job.column == 0 {
		if err := q.checkTokens(r, start, raw); err != nil {
			return err
		}
	}
	planned, ends := len(job.ends), job.ends[r.ends.from:r.ends.to]
	byToken := job.column == 0 && q.EndsByToken(r.source)
	if byToken {
		job.ends = q.sources[r.source].vocab.appendEnds(job.ends, raw, q.EOT, r.windowFirst)
		ends = job.ends[planned:]
	}
	windowEnd := r.windowFirst + len(raw)/q.layout.columns[job.column].numberBytes
	for n := range q.layout.arrays {
		p := job.partOf(&q.layout.arrays[n], r.batchOffset, r.j)
		if byToken && p.isFromDocuments() && !p.empty() {
			job.putDocumentMarks(p, ends)
		}
		p.interval = interval{max(p.from, r.windowFirst-p.firstNumber), min(p.to, windowEnd-p.firstNumber)}
		if p.empty() {
			continue
		}
		if p.maskColumn == job.column && job.column > 0 { // y is already in dst
			job.maskZeros(p, r.windowFirst-p.firstNumber, raw)
		}
		if p.content != contentFile || p.column != job.column {
			continue
		}
		first := p.firstNumber + p.from - r.windowFirst // index in raw
		if err := job.putNumbers(p, r.source, start, raw, first); err != nil {
			return err
		}
		if p.masked {
			job.mask(p, ends)
		}
	}
	job.ends = job.ends[:planned]
	return nil
}

// checkTokens returns an error if a token of a window, which begins at position start of the
// source, is not in the vocabulary, or if a document in it lacks its BOS.
func (q *Sequence) checkTokens(r *plannedRow, start int64, raw []byte) error {
	source, column := &q.sources[r.source], &q.layout.columns[0]
	if bad := source.vocab.find(raw); bad >= 0 {
		tokens := source.arrays[0]
		return &array.VocabularyError{Location: tokens.Locate(start + int64(bad)), Token: column.formatNumber(raw, bad), Size: tokens.VocabSize()}
	}
	if r.windowFirst == r.documentAt && column.dtype.Bits(raw) != *q.BOS {
		return q.bosError(r.source, start, column.formatNumber(raw, 0))
	}
	return nil
}

// maskZeros masks the targets in p where the mask is zero. raw has the part of the mask that begins
// at index first of p.
func (job *readJob) maskZeros(p rowPart, first int, raw []byte) {
	count := len(job.ends)
	job.ends = tokensBySize[job.sequence.layout.columns[job.column].numberBytes].appendEnds(job.ends, raw, 0, first)
	job.mask(p, job.ends[count:])
	job.ends = job.ends[:count]
}

// putNumbers writes p, whose first number is number first of a window, to dst. The window begins at
// number start of the source's array, and raw has its bytes.
func (job *readJob) putNumbers(p rowPart, source int, start int64, raw []byte, first int) error {
	q, column := job.sequence, &job.sequence.layout.columns[job.column]
	whole := job.bufferFor(p)
	if bad := p.convert(whole, raw[first*column.numberBytes:][:(p.to-p.from)*column.numberBytes]); bad >= 0 {
		return q.overflow(source, job.column, start+int64(first+bad), column.formatNumber(raw, first+bad), p.dtype)
	}
	job.copyOut(p, whole)
	return nil
}

// bufferFor returns where to write a rowPart: in dst, or in edgeBuffer if a number is partly
// outside dst. The caller must call copyOut afterwards.
func (job *readJob) bufferFor(p rowPart) []byte {
	offset, n := p.offset+p.from*p.numberBytes, (p.to-p.from)*p.numberBytes
	if offset >= 0 && offset+n <= len(job.dst) {
		return job.dst[offset : offset+n]
	}
	job.edgeBuffer = slices.Grow(job.edgeBuffer[:0], n)[:n]
	return job.edgeBuffer
}

// copyOut copies to dst what was written to edgeBuffer.
func (job *readJob) copyOut(p rowPart, whole []byte) {
	if offset := p.offset + p.from*p.numberBytes; offset < 0 || offset+len(whole) > len(job.dst) {
		copy(job.dst[max(offset, 0):], whole[max(-offset, 0):])
	}
}

// bosError returns the error for a document that begins with a token other than BOS, at a position
// of the source.
func (q *Sequence) bosError(source int, pos int64, token string) error {
	documents, at := q.sources[source].documents, q.sources[source].arrays[0].Locate(pos)
	number, err := documents.NumberAt(pos)
	first, firstErr := documents.NumberAt(pos - at.Index) // first document of the file
	return cmp.Or(err, firstErr, array.BOSError(at, number-first, token, *q.BOS))
}

// overflow returns the error for number i of an array, which dtype cannot hold.
func (q *Sequence) overflow(source, column int, i int64, value string, dtype array.DType) error {
	location := q.sources[source].arrays[column].Locate(i / int64(q.layout.columns[column].elementNumbers))
	what := "token"
	if q.Layout == Rows {
		what = "a number of element"
	}
	return fmt.Errorf("%s: %s %d is %s, which dtype %s cannot hold; set dtype to one that can, e.g. native",
		location.Path, what, location.Index, value, dtype)
}
