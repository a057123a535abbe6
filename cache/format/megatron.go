package format

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"batchfs/cache/array"
)

// Megatron-LM keeps tokens in PREFIX.bin and, in PREFIX.idx, where they lie: 34 bytes that say how much of what follows; the length
// of each sequence (int32); its first byte in the .bin file (int64); for each document the number of its first sequence (int64), and
// behind the last document how many sequences there are. For pictures among the text, a mode of each sequence follows (int8).
const (
	megatronMagic  = "MMIDIDX\x00\x00"
	megatronHeader = 34
)

type megatronHead struct {
	Magic                [9]byte
	Version              uint64
	DType                byte
	Sequences, Documents uint64 // and one more document
}

// megatronDTypes are by the numbers that an index has for them.
var megatronDTypes = map[byte]array.DType{
	1: array.Uint8, 2: array.Int8, 3: array.Int16, 4: array.Int32, 5: array.Int64, 6: array.Float64, 7: array.Float32, 8: array.Uint16,
}

// MegatronIndexOf is the path of the index of a file, "" if the file cannot have one.
func MegatronIndexOf(path string) string {
	prefix, ok := strings.CutSuffix(path, ".bin")
	if !ok {
		return ""
	}
	return prefix + ".idx"
}

// WriteMegatronIndex writes the index of a file of tokens of width bytes, 2 or 4, in which each document is one sequence. each calls visit
// with where each document begins and ends, as often as it is called.
func WriteMegatronIndex(w *bufio.Writer, width int, documents int64, each func(visit func(start, end uint64) error) error) error {
	dtype := byte(8)
	if width == 4 {
		dtype = 4 // int32, which has room for all tokens that there are
	}
	head := megatronHead{Magic: [9]byte([]byte(megatronMagic)), Version: 1, DType: dtype, Sequences: uint64(documents), Documents: uint64(documents) + 1}
	binary.Write(w, binary.LittleEndian, head) // an error stays in w
	put := func(bytes int, number uint64) error {
		_, err := w.Write(binary.LittleEndian.AppendUint64(w.AvailableBuffer(), number)[:bytes])
		return err
	}
	if err := each(func(start, end uint64) error {
		if end-start > math.MaxInt32 {
			return fmt.Errorf("a document of %d tokens: Megatron's index has room for %d", end-start, math.MaxInt32)
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

func parseMegatron(in *Input) (f Format, is bool, err error) {
	path := MegatronIndexOf(in.Path)
	if path == "" {
		return f, false, nil
	}
	idx, err := in.OpenSidecar(path)
	if idx == nil {
		return f, false, err
	}
	if is, err = idx.begins(megatronMagic); is {
		f, _, err = idx.megatron(in.Path, in.Size)
	}
	return f, is, err
}

// megatron says where the elements of the file at path lie, which has so many bytes, and where in this index its documents end.
func (idx *Input) megatron(path string, size int64) (f Format, ends Ends, err error) {
	raw, err := idx.read(0, megatronHeader)
	if err != nil {
		return f, ends, err
	}
	var head megatronHead
	binary.Decode(raw, binary.LittleEndian, &head) // which has megatronHeader bytes
	if f.DType = megatronDTypes[head.DType]; head.Version != 1 || f.DType == "" {
		return f, ends, fmt.Errorf("%s is an index of Megatron-LM of version %d with dtype %d, where batchfs knows version 1 and "+
			"dtypes 1 to 8", idx.Path, head.Version, head.DType)
	}
	n, d := head.Sequences, head.Documents
	const most = 1 << 56
	want := megatronHeader + 12*n + 8*d
	if n == 0 || d < 2 || n > most || d > most || uint64(idx.Size) != want && uint64(idx.Size) != want+n {
		return f, ends, fmt.Errorf("%s has %d bytes, but its header says that it is of %d sequences and %d documents; is it complete?",
			idx.Path, idx.Size, n, max(d, 1)-1)
	}
	width := int64(f.DType.Size())
	ends = Ends{
		At: megatronHeader + 12*int64(n) + 8, Count: int64(d) - 1,
		Starts: megatronHeader + 4*int64(n), Sequences: int64(n), Width: width,
	}
	if err := idx.contiguous(ends, path, size); err != nil {
		return f, ends, err
	}
	f.Count = size / width
	return f, ends, nil
}

// contiguous returns an error unless sequences lie one after the other, from the file's first byte to its last. It looks at some of many.
func (idx *Input) contiguous(e Ends, path string, size int64) error {
	const some, samples = 512, 16
	count := min(e.Sequences, some)
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
			next := from + length*e.Width
			good := from >= 0 && from <= size && length >= 0 && (first+n > 0 || from == 0)
			if n+1 < count {
				good = good && next == int64(binary.LittleEndian.Uint64(starts[8*n+8:]))
			}
			switch {
			case !good:
				return fmt.Errorf("%s: sequence %d begins at byte %d of %s and has %d tokens of %d bytes, and does not lie between those "+
					"before and after it: batchfs serves sequences that lie one after the other; write them anew with Megatron-LM's "+
					"tools/merge_datasets.py", idx.Path, first+n, from, path, length, e.Width)
			case first+n+1 == e.Sequences && next != size:
				return fmt.Errorf("%s has %d bytes, but %s says that its last sequence ends at byte %d; are they of one data set, and "+
					"complete?", path, size, idx.Path, next)
			}
		}
	}
	return nil
}
