package prepare

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
)

// A format says what a shard of token files is.
type format struct {
	extension string
	header    func(tokens int64, width int) []byte // always of one length; nil for none
	most      int64                                // tokens of a shard; 0 for any number

	// Formats with documents have shards of whole ones. ends is the name, for that of a shard, of a file of 64-bit numbers: after
	// how many tokens each document ends. finish writes what else belongs to a shard.
	ends   func(name string) string
	finish func(dir *os.Root, name string, s shard) error
}

// A shard is what finish must know.
type shard struct {
	tokens, documents int64
	width             int
	tokenizer         string
}

var formats = map[string]format{
	"headerless": {extension: ".bin"},
	"llm.c":      {extension: ".bin", header: llmcHeader, most: 1<<31 - 1},
	"npy":        {extension: ".npy", header: npyHeader},
	"megatron":   {extension: ".bin", ends: megatronEnds, finish: megatronIndex},
	"datatrove":  {extension: ".ds", ends: datatroveEnds, finish: datatroveMetadata},
}

func llmcHeader(tokens int64, width int) []byte {
	fields := [256]int32{20240520, 1, int32(tokens)}
	if width == 4 {
		fields = [256]int32{20240801, 7, int32(tokens)}
	}
	raw, _ := binary.Append(nil, binary.LittleEndian, fields)
	return raw
}

func npyHeader(tokens int64, width int) []byte {
	dict := fmt.Sprintf("{'descr': '<u%d', 'fortran_order': False, 'shape': (%d,), }", width, tokens)
	return fmt.Appendf(nil, "\x93NUMPY\x01\x00\x76\x00%-117s\n", dict)
}

// megatronEnds is a file that stays in the working directory.
func megatronEnds(name string) string { return "." + name + ".ends" }

// megatronIndex writes the .idx beside a .bin. Its dtypes are 8 for uint16, and 4 for int32, the only one for tokens up to 2^31.
func megatronIndex(dir *os.Root, name string, s shard) error {
	ends := megatronEnds(name)
	return create(dir, strings.TrimSuffix(name, ".bin")+".idx", func(w *bufio.Writer) error {
		dtype := byte(8)
		if s.width == 4 {
			dtype = 4
		}
		w.WriteString("MMIDIDX\x00\x00")
		binary.Write(w, binary.LittleEndian, uint64(1))
		w.WriteByte(dtype)
		binary.Write(w, binary.LittleEndian, []int64{s.documents, s.documents + 1})
		if err := eachDocument(dir, ends, func(start, end uint64) error {
			if end-start > 1<<31-1 {
				return fmt.Errorf("a document of %d tokens: Megatron's index has room for %d", end-start, 1<<31-1)
			}
			return put(w, 4, end-start)
		}); err != nil {
			return err
		}
		if err := eachDocument(dir, ends, func(start, _ uint64) error { return put(w, 8, start*uint64(s.width)) }); err != nil {
			return err
		}
		for i := range s.documents + 1 {
			put(w, 8, uint64(i)) // an error stays in w
		}
		return nil
	})
}

// put writes the lowest bytes of a number.
func put(w *bufio.Writer, bytes int, number uint64) error {
	_, err := w.Write(binary.LittleEndian.AppendUint64(w.AvailableBuffer(), number)[:bytes])
	return err
}

// eachDocument calls visit with where each document begins and ends.
func eachDocument(dir *os.Root, ends string, visit func(start, end uint64) error) error {
	f, err := dir.Open(ends)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	for start := uint64(0); ; {
		var raw [8]byte
		if _, err := io.ReadFull(in, raw[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", ends, err)
		}
		end := binary.LittleEndian.Uint64(raw[:])
		if err := visit(start, end); err != nil {
			return err
		}
		start = end
	}
}

func datatroveEnds(name string) string { return name + ".index" }

func datatroveMetadata(dir *os.Root, name string, s shard) error {
	return create(dir, name+".metadata", func(w *bufio.Writer) error {
		_, err := fmt.Fprintf(w, "%s|%d\n%d\n%[3]d tokens", s.tokenizer, s.width, s.tokens)
		return err
	})
}

// create writes a file that is on the disk when it returns.
func create(dir *os.Root, name string, write func(*bufio.Writer) error) error {
	f, err := dir.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
