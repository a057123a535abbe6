package format

import (
	"fmt"
	"strconv"
	"strings"

	"batchfs/cache/array"
)

// datatrove writes tokens to a.ds; the ends of documents to a.ds.index; and to a.ds.metadata, if it is told to, lines of text: the
// tokenizer's name, a bar and the bytes of a token; how many tokens there are; and that for people.

// MetadataSuffix is appended to the name of a token file: its metadata.
const MetadataSuffix = ".metadata"

// DatatroveMetadata describes a file of tokens of width bytes.
func DatatroveMetadata(tokenizer string, width int, tokens int64) string {
	return fmt.Sprintf("%s|%d\n%d\n%[3]d tokens", tokenizer, width, tokens)
}

func isDatatrove(in *Input) (bool, error) {
	if !strings.HasSuffix(in.Path, ".ds") {
		return false, nil
	}
	metadata, err := in.Beside(in.Path + MetadataSuffix)
	return metadata != nil, err
}

func parseDatatrove(in *Input) (f Format, err error) {
	metadata, err := in.Beside(in.Path + MetadataSuffix)
	if err != nil {
		return f, err
	}
	if metadata == nil {
		return f, fmt.Errorf("%s.metadata is gone", in.Path)
	}
	text, err := metadata.read(0, min(metadata.Size, firstBytes))
	if err != nil {
		return f, err
	}
	lines := append(strings.Split(string(text), "\n"), "")
	width := lines[0][strings.LastIndexByte(lines[0], '|')+1:]
	if f.DType = map[string]array.DType{"2": array.Uint16, "4": array.Uint32}[width]; f.DType == "" {
		return f, fmt.Errorf("%s: line 1 must end in |2 or |4, the bytes of a token (got %q)", metadata.Path, lines[0])
	}
	tokens, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil {
		return f, fmt.Errorf("%s: line 2 must be the number of tokens (got %q)", metadata.Path, lines[1])
	}
	f.Count = int64(tokens)
	if err := in.lengths(0, tokens, int64(f.DType.Size())); err != nil {
		return f, fmt.Errorf("%w (it has no header: %s says that)", err, metadata.Path)
	}
	return f, nil
}
