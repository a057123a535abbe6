package dataset

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"

	"batchfs/internal/jsonbytes"
	"batchfs/sampler"
)

type rowOrigin struct {
	row      uint64 // global row number
	epoch    uint64
	source   int
	phase    int // index of its phase in the stages of info.json
	file     string
	start    int64 // index of the row's first token in the file
	segments []sampler.Segment

	documents []int64 // numbers of all documents in the row; nil without document_numbers
}

func (d *Dataset) origin(k uint64, j int) (r rowOrigin, err error) {
	r = rowOrigin{row: d.Sequence.Row(k, j), epoch: d.Sequence.Epoch(k, j), phase: d.Sequence.PhaseOf(k, j)}
	if r.source, r.segments, err = d.Sequence.Segments(k, j); err == nil {
		at := d.mains[r.source].Locate(r.segments[0].Start)
		r.file, r.start = at.Path, at.Index
	}
	if err == nil && d.Sequence.DocumentNumbers {
		r.documents, err = d.Sequence.DocumentsOf(k, j)
	}
	return r, err
}

// Origins generates the files batch/<k>.json of a dataset. The lines of all rows have the same
// width, so the size is known, and any part can be generated without the rest. It is safe for
// concurrent use.
type Origins struct {
	dataset *Dataset
	head    []byte // content between the batch number and the first row
	width   int    // length of a row's line in bytes

	phaseDigits int // number of decimal digits of the last phase
}

const (
	firstLinesFormat = "{\n  \"batch\": %13d" // 13 digits are enough for sampler.MaxBatches
	lastLines        = "  ]\n}\n"
)

// Origins returns the files batch/<k>.json of d.
func (d *Dataset) Origins() *Origins {
	const behind = "\n}\n"
	head := indentedJSON(map[string]any{"sequence": d.sequencePath(), "fingerprint": d.fingerprint, "settings": d.settings()})
	head = fmt.Appendf(nil, ",%s,\n  \"rows\": [\n", head[len("{"):len(head)-len(behind)])
	o := &Origins{dataset: d, head: head, phaseDigits: len(strconv.Itoa(len(d.Sequence.Phases()) - 1))}
	longest := 0
	for _, path := range d.Files() {
		longest = max(longest, len(quoteJSON(path)))
	}
	for i := range max(len(d.Split.Sources), 1) { // sources differ in the lengths of their names
		widest := rowOrigin{source: i, segments: make([]sampler.Segment, 1), documents: d.mostDocuments(i)}
		o.width = max(o.width, len(o.line(widest))-len(quoteJSON(""))+longest)
	}
	return o
}

// mostDocuments returns as many numbers of documents as a row of a source can have, each with as
// many digits as any. It returns nil without document_numbers.
func (d *Dataset) mostDocuments(source int) []int64 {
	q := d.Sequence
	if !q.DocumentNumbers {
		return nil
	}
	count := d.mains[source].Documents().Count()
	most := min(count, int64(q.BlockSize)+1)
	if q.Rows == sampler.OfDocument || q.Rows == sampler.DocumentFirst {
		most = 1
	}
	return slices.Repeat([]int64{count - 1}, int(most))
}

func quoteJSON(path string) []byte {
	text, _ := jsonbytes.String(path).MarshalJSON() // never fails
	return text
}

func (o *Origins) line(r rowOrigin) []byte {
	line := fmt.Appendf(nil, `    {"row": %20d, "epoch": %20d, "file": %s, "start": %19d`, r.row, r.epoch, quoteJSON(r.file), r.start)
	if hasDocuments(o.dataset.mains[r.source]) {
		line = fmt.Appendf(line, `, "document": %19d, "segments": %10d`, r.segments[0].Document, len(r.segments))
	}
	if o.dataset.Sequence.DocumentNumbers {
		line = append(line, `, "documents": [`...)
		for i, number := range r.documents {
			if i > 0 {
				line = append(line, ", "...)
			}
			line = strconv.AppendInt(line, number, 10)
		}
		line = append(line, ']')
	}
	if o.dataset.Sequence.BOS != nil {
		line = fmt.Appendf(line, `, "inserted": %5t`, r.segments[0].Inserted)
	}
	if len(o.dataset.Split.Sources) > 0 {
		line = fmt.Appendf(line, `, "source": %q`, o.dataset.Split.Sources[r.source].Name)
	}
	if o.dataset.Split.Scheduled() {
		line = fmt.Appendf(line, `, "stage": %*d`, o.phaseDigits, r.phase)
	}
	return append(line, "},\n"...)
}

// Len returns the size of each file in bytes.
func (o *Origins) Len() int64 {
	return int64(len(o.firstLines(0))+len(o.head)) + int64(o.dataset.Sequence.BatchSize)*int64(o.width) + int64(len(lastLines))
}

func (o *Origins) firstLines(k uint64) []byte { return fmt.Appendf(nil, firstLinesFormat, k) }

// Read fills dst with the file of batch k, starting at byte off. The range must be within Len.
func (o *Origins) Read(dst []byte, k uint64, off int64) error {
	take := func(part []byte) {
		if off >= int64(len(part)) {
			off -= int64(len(part))
			return
		}
		dst = dst[copy(dst, part[off:]):]
		off = 0
	}
	take(o.firstLines(k))
	take(o.head)
	rows, width := o.dataset.Sequence.BatchSize, int64(o.width)
	j := int(min(off/width, int64(rows)))
	for off -= int64(j) * width; j < rows && len(dst) > 0; j++ {
		origin, err := o.dataset.origin(k, j)
		if err != nil {
			return err
		}
		line := o.line(origin)
		padding := bytes.Repeat([]byte{' '}, o.width-len(line))
		end := []byte(",\n")
		if j == rows-1 {
			end = []byte(" \n")
		}
		take(slices.Concat(line[:len(line)-len(end)], padding, end))
	}
	take([]byte(lastLines))
	return nil
}

// Write writes the whole file of batch k to out.
func (o *Origins) Write(out io.Writer, k uint64) error {
	part := make([]byte, 1<<16)
	for off := int64(0); off < o.Len(); off += int64(len(part)) {
		part = part[:min(int64(len(part)), o.Len()-off)]
		if err := o.Read(part, k, off); err != nil {
			return err
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	return nil
}
