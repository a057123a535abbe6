package format

import (
	"encoding/binary"
	"fmt"
)

// IndexSuffix is appended to the name of a token file: the index of its documents. The index has the position behind each
// document's last token, as little-endian uint64, as datatrove writes it.
const IndexSuffix = ".index"

// Ends says where in an index the ends of documents stand: Count little-endian int64 from byte At on, in rising order. Each is the position
// behind a document's last element. If there are Sequences, it is the number of the sequence behind the document's last one, and the first
// byte of each sequence in the file of elements stands as int64 from byte Starts on. An element has Width bytes.
type Ends struct {
	At, Count int64

	Starts, Sequences, Width int64
}

// Fits returns an error unless all that e names lies within the size bytes of an index.
func (e Ends) Fits(path string, size int64) error {
	within := func(at, count int64) bool { return at >= 0 && count >= 0 && at <= size && count <= (size-at)/8 }
	if e.Count < 1 || !within(e.At, e.Count) || !within(e.Starts, e.Sequences) || e.Sequences > 0 && e.Width < 1 {
		return fmt.Errorf("%s: the ends of %d documents are not within its %d bytes", path, e.Count, size)
	}
	return nil
}

// IndexOf is the path of the index of a file of the format at path.
func (f Format) IndexOf(path string) string {
	if f.Name == "megatron" {
		return MegatronIndexOf(path)
	}
	return path + IndexSuffix
}

// Ends finds the ends of documents in the index of the file at path, which has a format and size bytes.
func (in *Input) Ends(of Format, path string, size int64) (ends Ends, err error) {
	ends, limit := Ends{Count: in.Size / 8}, of.Count
	if of.Name == "megatron" {
		if _, ends, err = in.megatron(path, size); err != nil {
			return ends, err
		}
		limit = ends.Sequences
	} else if in.Size == 0 || in.Size%8 != 0 {
		return ends, fmt.Errorf("%s has %d bytes, which are no ends of documents of 8 bytes each; is it complete?", in.Path, in.Size)
	}
	raw, err := in.read(ends.At+8*(ends.Count-1), 8)
	if err != nil {
		return ends, err
	}
	if last := binary.LittleEndian.Uint64(raw); last != uint64(limit) {
		return ends, fmt.Errorf("%s: document %d, the last one, ends at %d, but %s ends at %d; is the index that of the file, and are "+
			"both complete?", in.Path, ends.Count-1, last, path, limit)
	}
	return ends, nil
}

// Rise returns an error if ends in a block of the index, its bytes from off on, do not increase.
func (e Ends) Rise(path string, off int64, block []byte) error {
	i := (max(off-e.At, 0) + 7) / 8
	for ; i+1 < e.Count && e.At+8*(i+2) <= off+int64(len(block)); i++ {
		at := block[e.At+8*i-off:]
		if was, end := binary.LittleEndian.Uint64(at), binary.LittleEndian.Uint64(at[8:]); was >= end || i == 0 && was == 0 {
			return NotRising(path, i+1, int64(end), int64(was))
		}
	}
	return nil
}

// NotRising is the error of a document that does not end behind the one before it.
func NotRising(path string, document, end, was int64) error {
	return fmt.Errorf("%s: document %d ends at %d, and the one before it at %d: every document must have a token at least",
		path, document, end, was)
}
