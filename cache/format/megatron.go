package format

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"batchfs/cache/array"
	"batchfs/internal/printable"
)

// Megatron-LM keeps tokens in PREFIX.bin. PREFIX.idx says where they lie:
//
//	header: 34 bytes, see megatronIndexHeader
//	length of each sequence, in tokens (int32)
//	first byte of each sequence in PREFIX.bin (int64)
//	number of the first sequence of each document, then the number of sequences (int64)
//	mode of each sequence (int8), only if there are pictures among the text
const megatronHeader = 34

type megatronIndexHeader struct {
	Magic                [9]byte
	Version              uint64
	DType                byte
	Sequences, Documents uint64 // Documents is the number of documents plus one
}

// megatronDTypes are the dtypes by their numbers in an index. DeepSpeed's Megatron-LM and fairseq
// added the last two.
var megatronDTypes = map[byte]array.DType{
	1: array.Uint8, 2: array.Int8, 3: array.Int16, 4: array.Int32, 5: array.Int64, 6: array.Float64, 7: array.Float32, 8: array.Uint16,
	9: array.Uint32, 10: array.Uint64,
}

// MegatronIndexOf returns the path of the index of a file, or "" if its name does not end in .bin.
func MegatronIndexOf(path string) string {
	prefix, ok := strings.CutSuffix(path, ".bin")
	if !ok {
		return ""
	}
	return prefix + ".idx"
}

// WriteMegatronIndex writes the index of a file of tokens of width bytes, 2 or 4, with one sequence
// per document. each must call visit with the positions where each document starts and ends, in
// order; it is called several times.
func WriteMegatronIndex(w *bufio.Writer, width int, documents int64, each func(visit func(start, end uint64) error) error) error {
	dtype := byte(8) // uint16
	if width == 4 {
		dtype = 4 // int32 suffices for all tokens
	}
	head := megatronIndexHeader{Magic: [9]byte([]byte(megatronMagic)), Version: 1, DType: dtype,
		Sequences: uint64(documents), Documents: uint64(documents) + 1}
	binary.Write(w, binary.LittleEndian, head) // a later write returns the error
	put := func(bytes int, number uint64) error {
		_, err := w.Write(binary.LittleEndian.AppendUint64(w.AvailableBuffer(), number)[:bytes])
		return err
	}
	if err := each(func(start, end uint64) error {
		if end-start > math.MaxInt32 {
			return fmt.Errorf("a document of %d tokens is too long: an index of Megatron-LM allows %d", end-start, math.MaxInt32)
		}
		return put(4, end-start)
	}); err != nil {
		return err
	}
	if err := each(func(start, _ uint64) error { return put(8, start*uint64(width)) }); err != nil {
		return err
	}
	for i := range documents + 1 {
		put(8, uint64(i))
	}
	return nil
}

func parseMegatron(in *Input) (f Format, matches bool, err error) {
	path := MegatronIndexOf(in.Path)
	if path == "" {
		return f, false, nil
	}
	idx, err := in.OpenSidecar(path)
	if idx == nil {
		return f, false, err
	}
	// An index is written last, so without one, the tokens may be incomplete, too.
	if idx.Size < int64(len(megatronMagic)) {
		return f, true, fmt.Errorf("%s has %d bytes, too few for an index of Megatron-LM; is it complete, and %s?", idx.Path, idx.Size, in.Path)
	}
	if matches, err = idx.hasPrefix(megatronMagic); matches {
		f, _, err = idx.megatron(in.Path, in.Size)
	}
	return f, matches, err
}

// megatron finds the elements of the file at path, which has size bytes, and the ends of its
// documents in this index.
func (idx *Input) megatron(path string, size int64) (f Format, ends Ends, err error) {
	raw, err := idx.read(0, megatronHeader)
	if err != nil {
		return f, ends, err
	}
	var head megatronIndexHeader
	binary.Decode(raw, binary.LittleEndian, &head) // cannot fail: raw has the right size
	f.DType = megatronDTypes[head.DType]
	n, d := head.Sequences, head.Documents
	// The index of fairseq lists no documents, so its header lacks their number.
	isFairseq := uint64(idx.Size) == megatronHeader-8+12*n
	if head.Version != 1 || f.DType == "" || isFairseq {
		return f, ends, fmt.Errorf("%s is not an index as Megatron-LM writes it, but of another tool, such as fairseq or Fast-LLM "+
			"(version %d, dtype %d); %s, or whichever it is", idx.Path, head.Version, head.DType, idx.withoutIndex(path, cmp.Or(f.DType, array.Uint16)))
	}
	const most = 1 << 56 // keeps the sizes below from overflowing
	want := megatronHeader + 12*n + 8*d
	if n > most || d > most || uint64(idx.Size) != want && uint64(idx.Size) != want+n {
		return f, ends, fmt.Errorf("%s has %d bytes, but its header announces %d sequences and %d documents; is it complete?",
			idx.Path, idx.Size, n, max(d, 1)-1)
	}
	width := int64(f.DType.Size())
	ends = Ends{
		At: megatronHeader + 12*int64(n) + 8, Count: int64(max(d, 1)) - 1,
		Starts: megatronHeader + 4*int64(n), Sequences: int64(n), Width: width,
	}
	if err := idx.checkContiguous(ends, f.DType, path, size); err != nil {
		return f, ends, err
	}
	if size == 0 {
		return f, ends, EmptyError(path + " is empty")
	}
	f.Count = size / width
	return f, ends, nil
}

// withoutIndex says how to read the file at path without this index.
func (idx *Input) withoutIndex(path string, dtype array.DType) string {
	return fmt.Sprintf("to read %s without it, set format = \"headerless\" and %s = %q", path, idx.dtypeKey(), dtype)
}

// megatronEnds finds the ends of the documents of the file at path, which has size bytes.
func (idx *Input) megatronEnds(path string, size int64) (Ends, error) {
	_, ends, err := idx.megatron(path, size)
	if err != nil {
		return ends, err
	}
	last, err := idx.lastEnd(ends)
	if err == nil && last != ends.Sequences {
		err = fmt.Errorf("%s lists %d documents, which end with sequence %d of %d, as if an old tool had merged sequences but not documents; "+
			"rows = \"windows\" without documents needs no list, and batchfs index %s --eot N --force makes an index that counts instead, "+
			"where token N ends each document", idx.Path, ends.Count, last, ends.Sequences, printable.ShellArg(path))
	}
	return ends, err
}

// checkContiguous returns an error unless sequences lie one after the other, from the first byte of
// the file to the last. It checks only samples of a large index.
func (idx *Input) checkContiguous(e Ends, dtype array.DType, path string, size int64) error {
	if e.Sequences == 0 && size > 0 {
		return fmt.Errorf("%s has %d bytes, but %s says that it has no sequences; do they belong together?", path, size, idx.Path)
	}
	const perSample, samples = 512, 16
	count := min(e.Sequences, perSample)
	last := e.Sequences - count
	for first, done := int64(0), false; !done; first = min(first+max(last/samples, count-1), last) {
		done = first == last
		lens, err := idx.read(megatronHeader+4*first, 4*count)
		if err != nil {
			return err
		}
		starts, err := idx.read(e.Starts+8*first, 8*count)
		if err != nil {
			return err
		}
		for n := range count {
			from, length := int64(binary.LittleEndian.Uint64(starts[8*n:])), int64(int32(binary.LittleEndian.Uint32(lens[4*n:])))
			next, want := from+length*e.Width, size
			if n+1 < count {
				want = int64(binary.LittleEndian.Uint64(starts[8*n+8:]))
			}
			isLast := first+n+1 == e.Sequences
			good := from >= 0 && from <= size && length >= 0 && (first+n > 0 || from == 0) && (next == want || n+1 == count)
			switch {
			case from < 0, next != want && uint32(next) == uint32(want) && (n+1 < count || isLast):
				return fmt.Errorf("%s: the offset of sequence %d, or of the next one, overflowed, as in some tools with NumPy 2 beyond 2 GiB; "+
					"write the index again with a newer version, or, %s", idx.Path, first+n, idx.withoutIndex(path, dtype))
			case !good:
				return fmt.Errorf("%s: sequence %d begins at byte %d of %s and has %d tokens of %d bytes, but the sequences before and "+
					"after it lie elsewhere: batchfs serves only sequences that lie one after the other; rewrite them with Megatron-LM's "+
					"tools/merge_datasets.py", idx.Path, first+n, from, path, length, e.Width)
			case isLast && next != size:
				return fmt.Errorf("%s has %d bytes, but %s says that its last sequence ends at byte %d; do they belong together, and are "+
					"both complete?", path, size, idx.Path, next)
			}
		}
	}
	return nil
}
