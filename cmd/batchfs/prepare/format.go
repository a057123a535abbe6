package prepare

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"

	tokenfile "batchfs/cache/format"
	"batchfs/cmd/batchfs/vocabulary"
)

// An outputFormat describes the files of a shard.
type outputFormat struct {
	extension string
	// header returns the file header, whose length does not depend on the arguments; nil for none.
	header    func(tokens int64, width int) []byte
	maxTokens int64 // limit of a shard; 0 for none

	// endsName names the file that records where a shard's documents end, in tokens, as 64-bit
	// numbers. finish, if not nil, writes one more file, which extraName names, and each shard ends
	// with a document.
	endsName  func(name string) string
	extraName func(name string) string
	finish    func(dir *os.Root, name string, s shardInfo) error
}

// files returns the names of all files of a shard that has ended.
func (f outputFormat) files(s vocabulary.Shard) []string {
	names := []string{s.Name}
	if ends := f.endsName(s.Name); !strings.HasPrefix(ends, ".") {
		names = append(names, ends)
	}
	if f.extraName != nil {
		names = append(names, f.extraName(s.Name))
	}
	for _, a := range s.Arrays {
		names = append(names, a.File)
	}
	if s.IDs != "" {
		names = append(names, s.IDs)
	}
	return names
}

// isTokenFile reports whether the name of a file of a shard is that of its tokens.
func isTokenFile(name string) bool {
	_, afterDot, _ := strings.Cut(name, ".")
	for _, f := range outputFormats {
		if "."+afterDot == f.extension {
			return true
		}
	}
	return false
}

type shardInfo struct {
	tokens, documents int64
	width             int
	tokenizer         string
}

var outputFormats = map[string]outputFormat{
	"headerless": {extension: ".bin", endsName: indexName},
	"llm.c":      {extension: ".bin", endsName: indexName, header: tokenfile.LLMCHeader, maxTokens: tokenfile.MaxLLMC},
	"npy":        {extension: ".npy", endsName: indexName, header: tokenfile.NpyTokensHeader},
	"megatron":   {extension: ".bin", endsName: megatronEndsName, extraName: tokenfile.MegatronIndexOf, finish: writeMegatronIndex},
	"datatrove":  {extension: ".ds", endsName: indexName, extraName: datatroveMetadataName, finish: writeDatatroveMetadata},
}

// megatronEndsName names the temporary file from which writeMegatronIndex writes the index.
func megatronEndsName(name string) string { return "." + name + ".ends" }

func writeMegatronIndex(dir *os.Root, name string, s shardInfo) error {
	return create(dir, tokenfile.MegatronIndexOf(name), func(w *bufio.Writer) error {
		return tokenfile.WriteMegatronIndex(w, s.width, s.documents, func(visit func(start, end uint64) error) error {
			return eachDocument(dir, megatronEndsName(name), visit)
		})
	})
}

// eachDocument calls visit with the bounds of each document, in tokens. The file named ends holds
// the end of each document.
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

func indexName(name string) string { return name + tokenfile.IndexSuffix }

func datatroveMetadataName(name string) string { return name + tokenfile.MetadataSuffix }

func writeDatatroveMetadata(dir *os.Root, name string, s shardInfo) error {
	return create(dir, datatroveMetadataName(name), func(w *bufio.Writer) error {
		_, err := w.WriteString(tokenfile.DatatroveMetadata(s.tokenizer, s.width, s.tokens))
		return err
	})
}

// idsSuffix is appended to the name of a token file to form that of the file with the ids of its
// documents: a line of JSON for each, in the order of the index.
const idsSuffix = ".ids"
