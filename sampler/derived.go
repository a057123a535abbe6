package sampler

import (
	"encoding/binary"
	"slices"
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

// mask sets the targets just before the indexes in ends to the padding, which masks them.
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
