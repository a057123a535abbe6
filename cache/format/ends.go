package format

import (
	"encoding/binary"
	"fmt"
)

// IndexSuffix is appended to the path of a token file to form that of its index. As datatrove
// writes it, the index has the position after each document's last token, as little-endian uint64.
const IndexSuffix = ".index"

// Ends says where an index lists the ends of documents, as little-endian int64 in nondecreasing
// order. An end is the position after the document's last element. In an index of Megatron-LM, a
// document ends after a sequence instead: the list then has sequence numbers, and a second list has
// the byte offset of each sequence in the token file. The field names are part of snapshots.
type Ends struct {
	At, Count         int64 // offset of the ends in bytes, and their number
	Starts, Sequences int64 // offset of the second list in bytes, and its length
	Width             int64 // size of an element in bytes; 0 if there are no sequences
}

// CheckFits returns an error unless both lists lie within the index at path, which has size bytes.
func (e Ends) CheckFits(path string, size int64) error {
	within := func(start, count int64) bool {
		return start >= 0 && count >= 0 && start <= size && count <= (size-start)/8
	}
	if e.Count < 1 || !within(e.At, e.Count) || !within(e.Starts, e.Sequences) || e.Sequences > 0 && e.Width < 1 {
		return fmt.Errorf("%s: the ends of %d documents are not within its %d bytes", path, e.Count, size)
	}
	return nil
}

// IndexesOf returns the paths of the indexes that the file at path may have. The first that exists
// counts.
func (f Format) IndexesOf(path string) []string {
	paths := []string{path + IndexSuffix}
	if f.Name == "megatron" {
		paths = append(paths, MegatronIndexOf(path))
	}
	return paths
}

// Ends finds the ends of documents in the index of the file at path, which has the given format and
// size in bytes.
func (in *Input) Ends(file Format, path string, size int64) (ends Ends, err error) {
	if file.Name == "megatron" && in.Path == MegatronIndexOf(path) {
		return in.megatronEnds(path, size)
	}
	ends = Ends{Count: in.Size / 8}
	if in.Size == 0 || in.Size%8 != 0 {
		return ends, fmt.Errorf("%s has %d bytes, which is not a whole number of document ends of 8 bytes; is it complete?", in.Path, in.Size)
	}
	last, err := in.lastEnd(ends)
	if err == nil && last != file.Count {
		err = fmt.Errorf("%s: document %d, the last one, ends at %d, but %s ends at %d; do they belong together, and are both complete?",
			in.Path, ends.Count-1, last, path, file.Count)
	}
	return ends, err
}

// lastEnd returns the end of the last document, or 0 if there is none.
func (in *Input) lastEnd(e Ends) (int64, error) {
	if e.Count < 1 {
		return 0, nil
	}
	raw, err := in.read(e.At+8*(e.Count-1), 8)
	if err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(raw)), nil
}

// CheckSorted returns an error if the ends in block, which begins at byte off of the index,
// decrease.
func (e Ends) CheckSorted(path string, off int64, block []byte) error {
	i := (max(off-e.At, 0) + 7) / 8
	for ; i+1 < e.Count && e.At+8*(i+2) <= off+int64(len(block)); i++ {
		pair := block[e.At+8*i-off:]
		if previous, end := binary.LittleEndian.Uint64(pair), binary.LittleEndian.Uint64(pair[8:]); previous > end {
			return UnsortedError(path, i+1, int64(end), int64(previous))
		}
	}
	return nil
}

// UnsortedError returns the error for a document that ends before the previous one does.
func UnsortedError(path string, document, end, previous int64) error {
	return fmt.Errorf("%s: document %d ends at %d, and the one before it at %d; batchfs index FILE --eot N --force replaces the index",
		path, document, end, previous)
}
