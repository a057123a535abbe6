package cache

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"sort"
	"sync/atomic"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// Values of Options.Documents besides "".
const (
	DocumentsIndexed  = "index" // an index next to each file has the ends of its documents
	FilesAreDocuments = "files"
)

// An Index describes the index of a token file as it was when opened. The index holds the ends of
// the file's documents.
type Index struct {
	Path     []byte
	Identity localfile.Stamp // the field name is part of snapshots
	Sample   localfile.Sample
	Ends     format.Ends
}

const indexFix = "batchfs index %s --eot N makes an index where token N ends each document"

// openIndex opens the index of a file and adds it to the fingerprint. It returns nil if there is
// none.
func openIndex(file *File, previous blob.Blob, sum *Fingerprint, o Options) (*Index, error) {
	path := string(file.Path)
	var in *fileInput
	for _, index := range file.Format.IndexesOf(path) {
		same := previous
		if previous != nil && previous.Path() != index {
			same = nil
		}
		var err error
		if in, err = openNeighbor(index, same, o); err != nil {
			return nil, err
		}
		if in != nil {
			break
		}
	}
	if in == nil {
		return nil, nil
	}
	defer in.close()
	if err := file.checkWriters(in.Path, in.content, o); err != nil {
		return nil, err
	}
	ends, err := in.Ends(file.Format, path, file.Identity.Size)
	if err != nil {
		return nil, err
	}
	var endsErr error
	sample, err := sum.add(in.Path, in.Size, in.readSample, func(off int64, block []byte) {
		endsErr = cmp.Or(endsErr, ends.CheckSorted(in.Path, off, block))
	})
	if err = cmp.Or(err, endsErr); err != nil {
		return nil, err
	}
	return &Index{[]byte(in.Path), in.stamp, sample, ends}, nil
}

// A documentIndex finds the documents of a shard. It always uses localfile.Pread: a search reads
// few pages, and mapping and freeing them takes longer. It is safe for concurrent use.
type documentIndex struct {
	blob   blob.Blob
	ends   format.Ends
	tokens int64

	// documentEnds holds positions in the shard or, in an index of Megatron-LM, numbers of its
	// sequences.
	documentEnds   sortedNumbers
	megatronStarts sortedNumbers // byte offset of each sequence in the token file
}

// newDocumentIndex returns the index of a file, or nil if it has none. block is how many numbers a
// search reads.
func newDocumentIndex(f File, block int64, o Options) (*documentIndex, error) {
	x := f.Index
	if x == nil {
		return nil, nil
	}
	if err := x.Ends.CheckFits(string(x.Path), x.Identity.Size); err != nil {
		return nil, err
	}
	reading := localfile.Options{Access: localfile.Pread, DropPageCache: o.Reading.DropPageCache}
	file, err := blob.New(x.Path, x.Identity, x.Sample, reading, o.Remote)
	return &documentIndex{
		blob: file, ends: x.Ends, tokens: f.Format.Count,
		documentEnds: newSortedNumbers(x.Ends.At, x.Ends.Count, block), megatronStarts: newSortedNumbers(x.Ends.Starts, x.Ends.Sequences, block),
	}, err
}

func (x *documentIndex) manifestIndex() *Index {
	if x == nil {
		return nil
	}
	return &Index{[]byte(x.blob.Path()), x.blob.Stamp(), x.blob.Sample(), x.ends}
}

// documentAt returns the document that holds a token, both numbered within the shard, and the ends
// of that document and the following ones, as far as they were read.
func (x *documentIndex) documentAt(token int64) (document int64, ends []int64, err error) {
	if x.ends.Sequences > 0 {
		if token, _, err = x.megatronStarts.upperBound(x.blob, token*x.ends.Width); err != nil {
			return 0, nil, err
		}
		token-- // number of the sequence that holds the token
	}
	document, ends, err = x.documentEnds.upperBound(x.blob, token)
	switch {
	case err != nil:
		return 0, nil, err
	case document >= x.ends.Count:
		return 0, nil, fmt.Errorf("%s: no document holds token %d", x.blob.Path(), token)
	case x.ends.Sequences > 0:
		return document, nil, nil
	}
	return document, ends, x.checkSorted(ends, document, token)
}

// read sets ends to the ends of documents first, first+1, ... of the shard.
func (x *documentIndex) read(first int64, ends []int64) error {
	before := min(first, 1) // checkSorted also needs the end before first, if there is one
	all := make([]int64, before+int64(len(ends)))
	if err := x.documentEnds.read(x.blob, first-before, all); err != nil {
		return err
	}
	if x.ends.Sequences > 0 {
		if err := x.resolveSequences(all, first-before); err != nil {
			return err
		}
	}
	copy(ends, all[before:])
	return x.checkSorted(all, first-before, 0)
}

// checkSorted returns an error unless the ends of documents first, first+1, ... are at least
// previous, do not decrease, and lie within the shard.
func (x *documentIndex) checkSorted(ends []int64, first, previous int64) error {
	for i, end := range ends {
		switch document := first + int64(i); {
		case end > x.tokens:
			return fmt.Errorf("%s: document %d ends at %d, beyond the %d tokens of the file", x.blob.Path(), document, end, x.tokens)
		case end < previous:
			return format.UnsortedError(x.blob.Path(), document, end, previous)
		}
		previous = end
	}
	return nil
}

// resolveSequences replaces the number of each sequence with the position where it begins.
// sequences[0] is the end of document first.
func (x *documentIndex) resolveSequences(sequences []int64, first int64) error {
	var ranges []localfile.Range
	for i, n := range sequences {
		switch {
		case n < 0 || n > x.ends.Sequences:
			return fmt.Errorf("%s: document %d ends at sequence %d of %d", x.blob.Path(), first+int64(i), n, x.ends.Sequences)
		case n == x.ends.Sequences:
			sequences[i] = x.tokens
		default:
			ranges = append(ranges, x.megatronStarts.bytes(n, 1, i))
		}
	}
	return x.blob.Read(ranges, func(i int, raw []byte) error {
		sequences[i] = int64(binary.LittleEndian.Uint64(raw)) / x.ends.Width
		return nil
	})
}

func unpack(numbers []int64, raw []byte) {
	for i := range min(len(raw)/8, len(numbers)) {
		numbers[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
}

// A sortedNumbers is a list of count int64 at a byte offset in a file, in nondecreasing order. A
// search reads one block of the list, and keeps the last numbers of the blocks that it has seen in
// memory. It is safe for concurrent use.
type sortedNumbers struct {
	offset, count int64
	perBlock      int64
	last          []atomic.Int64 // last number of each block, plus one; 0 if not read yet
}

// maxBlocks is about how many last numbers all indexes of an array keep in memory, a mebibyte.
// minBlock is how many numbers fill a page.
const (
	maxBlocks = 1 << 17
	minBlock  = 512
)

// searchBlock returns how many numbers a block of sortedNumbers has.
func (m Manifest) searchBlock() int64 {
	all := int64(0)
	for _, f := range m.Files {
		if x := f.Index; x != nil {
			all += x.Ends.Count + x.Ends.Sequences
		}
	}
	return (max(all/maxBlocks, 1) + minBlock - 1) / minBlock * minBlock
}

func newSortedNumbers(at, count, block int64) sortedNumbers {
	return sortedNumbers{at, count, block, make([]atomic.Int64, (count+block-1)/block)}
}

func (n *sortedNumbers) bytes(first, count int64, index int) localfile.Range {
	return localfile.Range{From: n.offset + 8*first, To: n.offset + 8*(first+count), Index: index}
}

func (n *sortedNumbers) read(file blob.Blob, first int64, numbers []int64) error {
	return file.Read([]localfile.Range{n.bytes(first, int64(len(numbers)), 0)}, func(_ int, raw []byte) error {
		unpack(numbers, raw)
		return nil
	})
}

// upperBound returns how many numbers are at most v, and up to 16 of those above v, in order.
func (n *sortedNumbers) upperBound(file blob.Blob, v int64) (i int64, above []int64, err error) {
	block := sort.Search(len(n.last), func(i int) bool {
		last := n.last[i].Load() - 1
		if last < 0 && err == nil {
			number := []int64{-1}
			err = n.read(file, min(int64(i+1)*n.perBlock, n.count)-1, number)
			last = number[0]
			n.last[i].Store(max(last, -1) + 1)
		}
		return last > v
	})
	if err != nil || block == len(n.last) {
		return n.count, nil, err
	}
	first := int64(block) * n.perBlock
	err = file.Read([]localfile.Range{n.bytes(first, min(n.perBlock, n.count-first), 0)}, func(_ int, raw []byte) error {
		in := sort.Search(len(raw)/8, func(i int) bool { return int64(binary.LittleEndian.Uint64(raw[8*i:])) > v })
		i, above = first+int64(in), make([]int64, min(len(raw)/8-in, 16))
		unpack(above, raw[8*in:])
		return nil
	})
	return i, above, err
}

// A Documents finds where the documents of an array end. No document spans two files. At most about
// a mebibyte of the indexes stays in memory. A Documents is safe for concurrent use.
type Documents struct {
	array *Array
	first []int64 // number of the first document of each file, then the total number

	// recent holds, at index n modulo 64, the ends that were read while searching for document n.
	// Callers usually ask for them next.
	recent [64]atomic.Pointer[recentEnds]
}

type recentEnds struct {
	first int64
	ends  []int64
}

func newDocuments(a *Array) *Documents {
	d := &Documents{array: a, first: make([]int64, 1, len(a.shards)+1)}
	for i := range a.shards {
		count := int64(1)
		if x := a.shards[i].index; x != nil {
			count = x.ends.Count
		}
		d.first = append(d.first, d.first[i]+count)
	}
	return d
}

// Documents returns the documents of the array, or nil if Options did not request them or no file
// has an index of them.
func (a *Array) Documents() *Documents { return a.documents }

// Count returns the number of documents.
func (d *Documents) Count() int64 { return d.first[len(d.first)-1] }

// NumberAt returns the number of the document that holds the element at pos.
func (d *Documents) NumberAt(pos int64) (int64, error) {
	i := d.array.shardNumber(pos)
	s := &d.array.shards[i]
	if s.index == nil {
		return d.first[i], nil
	}
	document, ends, err := s.index.documentAt(pos - s.start)
	if err != nil {
		return 0, err
	}
	document += d.first[i]
	for j := range ends {
		ends[j] += s.start
	}
	d.recent[document%int64(len(d.recent))].Store(&recentEnds{document, ends})
	return document, nil
}

// Locate returns the file of a document, and the number of the document in that file.
func (d *Documents) Locate(number int64) array.Location {
	i := sort.Search(len(d.first), func(i int) bool { return d.first[i] > number }) - 1
	return array.Location{Path: d.array.shards[i].blob.Path(), Index: number - d.first[i]}
}

// Ends sets ends to the positions after the last elements of documents first, first+1, ..., which
// must exist. The error says that an index is damaged or cannot be read.
func (d *Documents) Ends(first int64, ends []int64) error {
	if p := d.recent[first%int64(len(d.recent))].Load(); p != nil && p.first == first && len(p.ends) >= len(ends) {
		copy(ends, p.ends)
		return nil
	}
	for i := sort.Search(len(d.first), func(i int) bool { return d.first[i] > first }) - 1; len(ends) > 0; i++ {
		s := &d.array.shards[i]
		n := min(int64(len(ends)), d.first[i+1]-first)
		if s.index == nil {
			ends[0] = s.end()
		} else {
			if err := s.index.read(first-d.first[i], ends[:n]); err != nil {
				return err
			}
			for j := range ends[:n] {
				ends[j] += s.start
			}
		}
		first, ends = first+n, ends[n:]
	}
	return nil
}
