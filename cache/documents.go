package cache

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"sort"
	"sync/atomic"

	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// What Options.Documents may be, besides "".
const (
	DocumentsIndexed  = "index" // an index beside each file says where its documents end
	FilesAreDocuments = "files" // each file is one document
)

// An Index is a file that says where the documents of another one end, when it was opened.
type Index struct {
	Path     []byte
	Identity localfile.Identity
	Sample   localfile.Sample
	Ends     format.Ends
}

const indexFix = "batchfs index %s --eot N makes an index where token N ends each document"

// openIndex opens the index of a file, and adds it to the fingerprint. It returns nil if there is none.
func openIndex(of *File, previous blob.Blob, sum *Fingerprint, o Options) (*Index, error) {
	path := string(of.Path)
	in, err := openSidecar(of.Format.IndexOf(path), previous, o.Remote)
	if in == nil {
		return nil, err
	}
	defer in.content.Close()
	if err := of.checkWriters(in.Path, in.content, o); err != nil {
		return nil, err
	}
	ends, err := in.Ends(of.Format, path, of.Identity.Size)
	if err != nil {
		return nil, err
	}
	var wrong error
	sample, err := sum.add(in.Path, in.Size, in.content, func(off int64, block []byte) {
		wrong = cmp.Or(wrong, ends.Rise(in.Path, off, block))
	})
	if err = cmp.Or(err, wrong); err != nil {
		return nil, err
	}
	return &Index{[]byte(in.Path), in.id, sample, ends}, nil
}

// An index says where the documents of a shard end. Whatever the access to the shard, it is read with localfile.Pread: a search needs one
// page, and to map that and give it back takes four times as long.
type index struct {
	blob   blob.Blob
	ends   format.Ends
	tokens int64 // of the shard

	documents sorted // the ends, or the sequences behind the last ones of documents
	starts    sorted // of sequences
}

// newIndex returns nil for a file that has no index. A search reads that many numbers at a time.
func newIndex(f File, block int64, o Options) (*index, error) {
	x := f.Index
	if x == nil {
		return nil, nil
	}
	if err := x.Ends.Fits(string(x.Path), x.Identity.Size); err != nil {
		return nil, err
	}
	file, err := blob.New(x.Path, x.Identity, x.Sample, localfile.Pread, o.DropPageCache, o.Remote)
	return &index{
		blob: file, ends: x.Ends, tokens: f.Format.Count,
		documents: newSorted(x.Ends.At, x.Ends.Count, block), starts: newSorted(x.Ends.Starts, x.Ends.Sequences, block),
	}, err
}

func (x *index) manifest() *Index {
	if x == nil {
		return nil
	}
	return &Index{[]byte(x.blob.Path()), x.blob.Identity(), x.blob.Sample(), x.ends}
}

// of finds the document that holds a token, both by their numbers in the shard. It also returns where that document and some behind it end,
// if that was read on the way.
func (x *index) of(token int64) (document int64, ends []int64, err error) {
	if x.ends.Sequences > 0 {
		if token, _, err = x.starts.upper(x.blob, token*x.ends.Width); err != nil {
			return 0, nil, err
		}
		token-- // the sequence that holds it
	}
	document, ends, err = x.documents.upper(x.blob, token)
	switch {
	case err != nil:
		return 0, nil, err
	case document >= x.ends.Count:
		return 0, nil, fmt.Errorf("%s: no document holds token %d", x.blob.Path(), token)
	case x.ends.Sequences > 0:
		return document, nil, nil
	}
	return document, ends, x.rising(ends, document, token)
}

// read sets ends to where documents first, first+1, ... of the shard end.
func (x *index) read(first int64, ends []int64) error {
	before := min(first, 1) // one more, to compare the first one with
	all := make([]int64, before+int64(len(ends)))
	if err := x.documents.read(x.blob, first-before, all); err != nil {
		return err
	}
	if x.ends.Sequences > 0 {
		if err := x.locate(all, first-before); err != nil {
			return err
		}
	}
	copy(ends, all[before:])
	return x.rising(all, first-before, 0)
}

// rising returns an error unless the ends of documents from first on rise from above was, and no further than the shard.
func (x *index) rising(ends []int64, first, was int64) error {
	for i, end := range ends {
		switch document := first + int64(i); {
		case end > x.tokens:
			return fmt.Errorf("%s: document %d ends at %d, beyond the %d tokens of the file", x.blob.Path(), document, end, x.tokens)
		case end <= was:
			return format.NotRising(x.blob.Path(), document, end, was)
		}
		was = end
	}
	return nil
}

// locate replaces the numbers of sequences, those behind the last ones of documents from first on, by their first tokens.
func (x *index) locate(sequences []int64, first int64) error {
	var runs []localfile.Range
	for i, n := range sequences {
		switch {
		case n < 0 || n > x.ends.Sequences:
			return fmt.Errorf("%s: document %d ends at sequence %d of %d", x.blob.Path(), first+int64(i), n, x.ends.Sequences)
		case n == x.ends.Sequences:
			sequences[i] = x.tokens
		default:
			runs = append(runs, x.starts.bytes(n, 1, i))
		}
	}
	return x.blob.Read(runs, func(i int, raw []byte) error {
		sequences[i] = int64(binary.LittleEndian.Uint64(raw)) / x.ends.Width
		return nil
	})
}

func unpack(numbers []int64, raw []byte) {
	for i := range min(len(raw)/8, len(numbers)) {
		numbers[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
}

// A sorted is count numbers in a file from byte at on, none below the one before it. A search reads one block of them, and keeps in memory
// the last number of each block that it looked at.
type sorted struct {
	at, count int64
	block     int64          // numbers of a block
	last      []atomic.Int64 // of each block, its last number, plus one; 0: not yet known
}

// Of all indexes of an array, up to maxBlocks numbers are kept, a mebibyte. minBlock numbers are a page.
const (
	maxBlocks = 1 << 17
	minBlock  = 512
)

// blockOf is how many numbers a search in the indexes reads at a time.
func (m Manifest) blockOf() int64 {
	all := int64(0)
	for _, f := range m.Files {
		if x := f.Index; x != nil {
			all += x.Ends.Count + x.Ends.Sequences
		}
	}
	return (max(all/maxBlocks, 1) + minBlock - 1) / minBlock * minBlock
}

func newSorted(at, count, block int64) sorted {
	return sorted{at, count, block, make([]atomic.Int64, (count+block-1)/block)}
}

func (n *sorted) bytes(first, count int64, index int) localfile.Range {
	return localfile.Range{From: n.at + 8*first, To: n.at + 8*(first+count), Index: index}
}

// read sets numbers to those from the first on.
func (n *sorted) read(file blob.Blob, first int64, numbers []int64) error {
	return file.Read([]localfile.Range{n.bytes(first, int64(len(numbers)), 0)}, func(_ int, raw []byte) error {
		unpack(numbers, raw)
		return nil
	})
}

// upper is how many of the numbers are v or below, and up to 16 of those above.
func (n *sorted) upper(file blob.Blob, v int64) (i int64, above []int64, err error) {
	block := sort.Search(len(n.last), func(i int) bool {
		last := n.last[i].Load() - 1
		if last < 0 && err == nil {
			one := []int64{-1}
			err = n.read(file, min(int64(i+1)*n.block, n.count)-1, one)
			last = one[0]
			n.last[i].Store(max(last, -1) + 1)
		}
		return last > v
	})
	if err != nil || block == len(n.last) {
		return n.count, nil, err
	}
	first := int64(block) * n.block
	err = file.Read([]localfile.Range{n.bytes(first, min(n.block, n.count-first), 0)}, func(_ int, raw []byte) error {
		in := sort.Search(len(raw)/8, func(i int) bool { return int64(binary.LittleEndian.Uint64(raw[8*i:])) > v })
		i, above = first+int64(in), make([]int64, min(len(raw)/8-in, 16))
		unpack(above, raw[8*in:])
		return nil
	})
	return i, above, err
}

// Documents say where the documents of an array end. No document crosses from one file into the next. They read from the indexes, of which
// they keep a mebibyte at most, and are safe for concurrent use.
type Documents struct {
	array *Array
	first []int64 // number of the first document of each file, and how many there are in all

	recent [64]atomic.Pointer[endsFrom] // what Of read for document n is at n modulo 64, because Ends is called next
}

// endsFrom is where documents from the first on end.
type endsFrom struct {
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

// Documents returns nil if Options did not ask for them, or if no file says where they end.
func (a *Array) Documents() *Documents { return a.documents }

// Count is the number of documents.
func (d *Documents) Count() int64 { return d.first[len(d.first)-1] }

// Of is the number of the document that holds the element at a position.
func (d *Documents) Of(pos int64) (int64, error) {
	i := d.array.shardNumber(pos)
	s := &d.array.shards[i]
	if s.index == nil {
		return d.first[i], nil
	}
	document, ends, err := s.index.of(pos - s.start)
	if err != nil {
		return 0, err
	}
	document += d.first[i]
	for j := range ends {
		ends[j] += s.start
	}
	d.recent[document%int64(len(d.recent))].Store(&endsFrom{document, ends})
	return document, nil
}

// Ends sets ends to the positions behind the last elements of documents first, first+1, ..., which there must be. The error says of
// a document that it does not end behind the one before it, or ends beyond its file.
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
