package sampler

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"batchfs/cache/array"
)

// putDerived writes the numbers of a row that are not copied from files. Only the first used
// indexes of the row have tokens.
func (job *readJob) putDerived(r plannedRow, used int) {
	q := job.sequence
	for i := range q.layout.arrays {
		p := job.partOf(&q.layout.arrays[i], r.batchOffset, r.j)
		switch {
		case p.empty():
		case p.content == contentFile:
			job.pad(p, used, q.BlockSize+1)
			for _, s := range job.segments {
				if s.Inserted {
					job.pad(p, s.At, s.At+1)
				}
			}
		case p.content == contentLengths:
			job.fill(p, int64(min(used, q.BlockSize)))
		case p.content == contentSource:
			job.fill(p, int64(r.source))
		case p.content == contentNumbers:
			job.putDocumentNumbers(p, job.ends[r.ends.from:r.ends.to])
		case p.isFromDocuments() && !q.EndsByToken(r.source):
			job.putDocumentMarks(p, job.ends[r.ends.from:r.ends.to])
		}
	}
}

// pad fills the indexes [from, to) of a row with the padding of a copied array. A masked target
// stays masked, because every segment counts as a document.
func (job *readJob) pad(p rowPart, from, to int) {
	n := job.sequence.layout.columns[p.column].elementNumbers
	p.from, p.to = max(p.from, from*n-p.firstNumber), min(p.to, to*n-p.firstNumber)
	job.fill(p, p.padding)
}

// copyRow writes window i of the current plan to dst.
func (job *readJob) copyRow(i int, raw []byte) error {
	q := job.sequence
	column, r, start := q.layout.columns[job.column], job.plan.rows[i], job.plan.windows[i].Start
	ends := job.ends[r.ends.from:r.ends.to]
	byToken, planned := job.column == 0 && q.EndsByToken(r.source), len(job.ends)
	if job.column == 0 {
		if bad := q.sources[r.source].vocab.find(raw); bad >= 0 {
			tokens := q.sources[r.source].arrays[0]
			return &array.VocabularyError{Location: tokens.Locate(start + int64(bad)), Token: column.formatNumber(raw, bad), Size: tokens.VocabSize()}
		}
		if r.windowFirst == r.documentAt && column.dtype.Bits(raw) != *q.BOS {
			return q.bosError(r.source, start, column.formatNumber(raw, 0))
		}
		if byToken {
			job.ends = q.sources[r.source].vocab.appendEnds(job.ends, raw, q.EOT, r.windowFirst)
			ends = job.ends[planned:]
		}
	}
	for n := range q.layout.arrays {
		p := job.partOf(&q.layout.arrays[n], r.batchOffset, r.j)
		if byToken && p.isFromDocuments() && !p.empty() {
			job.putDocumentMarks(p, ends)
		}
		p.interval = interval{max(p.from, r.windowFirst-p.firstNumber), min(p.to, r.windowFirst+len(raw)/column.numberBytes-p.firstNumber)}
		if p.empty() {
			continue
		}
		if p.maskColumn == job.column && job.column > 0 { // y is already in dst
			count := len(job.ends)
			job.ends = tokensBySize[column.numberBytes].appendEnds(job.ends, raw, 0, r.windowFirst-p.firstNumber)
			job.mask(p, job.ends[count:])
			job.ends = job.ends[:count]
		}
		if p.content != contentFile || p.column != job.column {
			continue
		}
		first := p.firstNumber + p.from - r.windowFirst // index in raw
		whole := job.bufferFor(p)
		if bad := p.convert(whole, raw[first*column.numberBytes:][:(p.to-p.from)*column.numberBytes]); bad >= 0 {
			return q.overflow(r.source, job.column, start+int64(first+bad), column.formatNumber(raw, first+bad), p.dtype)
		}
		if job.copyOut(p, whole); p.masked {
			job.mask(p, ends)
		}
	}
	job.ends = job.ends[:planned]
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

// mask masks the targets at the indexes before ends.
func (job *readJob) mask(p rowPart, ends []int) {
	first, _ := slices.BinarySearch(ends, p.from+1)
	last, _ := slices.BinarySearch(ends, p.to+1)
	for ends = ends[first:last]; len(ends) > 0; {
		n := 1
		for n < len(ends) && ends[n] == ends[0]+n {
			n++
		}
		job.fill(rowPart{p.batchArray, p.offset, interval{ends[0] - 1, ends[0] - 1 + n}}, p.padding)
		ends = ends[n:]
	}
}

// putDocumentMarks writes a part of cu_seqlens or positions. ends are the ends of documents in the
// row.
func (job *readJob) putDocumentMarks(p rowPart, ends []int) {
	t := job.sequence.BlockSize
	from, to := p.from, p.to
	whole := job.bufferFor(p)
	numbers := viewAs[int32](whole)
	if p.content == contentCuSeqlens {
		for i := range numbers {
			numbers[i] = int32(t)
			if index := from + i; index == 0 {
				numbers[i] = 0
			} else if index <= len(ends) {
				numbers[i] = int32(min(ends[index-1], t))
			}
		}
	} else {
		for begin, next := 0, 0; begin < to; next++ {
			end := to
			if next < len(ends) {
				end = min(ends[next], to)
			}
			for index := max(begin, from); index < end; index++ {
				numbers[index-from] = int32(index - begin)
			}
			begin = end
		}
	}
	job.copyOut(p, whole)
}

// putDocumentNumbers writes a part of document_numbers. ends are the ends of documents in the row.
func (job *readJob) putDocumentNumbers(p rowPart, ends []int) {
	whole := job.bufferFor(p)
	numbers := viewAs[int64](whole)
	for i := range numbers {
		index := p.from + i
		isInX := index < len(job.numbers) && (index == 0 || ends[index-1] < job.sequence.BlockSize)
		if numbers[i] = -1; isInX {
			numbers[i] = job.numbers[index]
		}
	}
	job.copyOut(p, whole)
}

func (job *readJob) fill(p rowPart, value int64) {
	if p.empty() {
		return
	}
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(value))
	whole := job.bufferFor(p)
	for done := copy(whole, number[:p.numberBytes]); done < len(whole); done *= 2 {
		copy(whole[done:], whole[:done])
	}
	job.copyOut(p, whole)
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
