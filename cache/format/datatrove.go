package format

import (
	"fmt"
	"strconv"
	"strings"

	"batchfs/cache/array"
)

// datatrove writes tokens to a.ds, the ends of documents to a.ds.index and, optionally, three lines
// of text to a.ds.metadata: the tokenizer, a bar and the bytes of a token; the number of tokens;
// and that number again, with its unit. Old versions wrote no bar, and their tokens have two bytes.

// MetadataSuffix is appended to the path of a token file to form that of its metadata.
const MetadataSuffix = ".metadata"

// DatatroveMetadata returns the metadata of a file of tokens of width bytes.
func DatatroveMetadata(tokenizer string, width int, tokens int64) string {
	return fmt.Sprintf("%s|%d\n%d\n%[3]d tokens", tokenizer, width, tokens)
}

func parseDatatrove(in *Input) (f Format, matches bool, err error) {
	if !strings.HasSuffix(in.Path, ".ds") {
		return f, false, nil
	}
	metadata, err := in.OpenSidecar(in.Path + MetadataSuffix)
	if metadata == nil {
		return f, false, err
	}
	text, err := metadata.head(firstBytes)
	if err != nil {
		return f, true, err
	}
	lines := append(strings.Split(string(text), "\n"), "")
	width := "2"
	if bar := strings.LastIndexByte(lines[0], '|'); bar >= 0 {
		width = lines[0][bar+1:]
	}
	if f.DType = map[string]array.DType{"2": array.Uint16, "4": array.Uint32}[width]; f.DType == "" {
		return f, true, fmt.Errorf("%s: line 1 must end in |2 or |4, the bytes of a token (got %q)", metadata.Path, lines[0])
	}
	tokens, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		return f, true, fmt.Errorf("%s: line 2 must be the number of tokens (got %q)", metadata.Path, lines[1])
	}
	if err := f.setShape(in.Path, []int64{tokens}, in.Size); err != nil {
		return f, true, fmt.Errorf("%w (according to %s)", err, metadata.Path)
	}
	return f, true, nil
}
