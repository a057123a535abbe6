package prepare

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	tokenfile "batchfs/cache/format"
)

type outputFormat struct {
	extension string
	header    func(tokens int64, width int) []byte // always of one length; nil for none
	most      int64                                // tokens of a shard; 0 for any number

	// ends names the file, of a shard with a name, that has 64-bit numbers: after how many tokens each document ends. finish writes what
	// else belongs to a shard; formats that have it have shards of whole documents.
	ends   func(name string) string
	finish func(dir *os.Root, name string, s shard) error
}

// A shard is what finish must know.
type shard struct {
	tokens, documents int64
	width             int
	tokenizer         string
}

var outputFormats = map[string]outputFormat{
	"headerless": {extension: ".bin", ends: indexOf},
	"llm.c":      {extension: ".bin", ends: indexOf, header: tokenfile.LLMCHeader, most: tokenfile.MaxLLMC},
	"npy":        {extension: ".npy", ends: indexOf, header: tokenfile.NpyHeader},
	"megatron":   {extension: ".bin", ends: megatronEnds, finish: megatronIndex},
	"datatrove":  {extension: ".ds", ends: indexOf, finish: datatroveMetadata},
}

// megatronEnds is a file that stays in the working directory.
func megatronEnds(name string) string { return "." + name + ".ends" }

func megatronIndex(dir *os.Root, name string, s shard) error {
	return create(dir, tokenfile.MegatronIndexOf(name), func(w *bufio.Writer) error {
		return tokenfile.WriteMegatronIndex(w, s.width, s.documents, func(visit func(start, end uint64) error) error {
			return eachDocument(dir, megatronEnds(name), visit)
		})
	})
}

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

func indexOf(name string) string { return name + tokenfile.IndexSuffix }

func datatroveMetadata(dir *os.Root, name string, s shard) error {
	return create(dir, name+tokenfile.MetadataSuffix, func(w *bufio.Writer) error {
		_, err := w.WriteString(tokenfile.DatatroveMetadata(s.tokenizer, s.width, s.tokens))
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
	return cmp.Or(write(w), w.Flush(), f.Sync(), f.Close())
}
