package format

import (
	"encoding/binary"
	"fmt"
	"slices"

	"batchfs/cache/array"
)

// llmcHeader is the size of the header of llm.c and modded-nanogpt, in bytes. The first three of
// its int32 are a magic number, a version and the number of tokens.
const llmcHeader = 256 * 4

// MaxLLMC is the maximum number of tokens in an llm.c token file.
const MaxLLMC = 1<<31 - 1

type llmcKind struct {
	magic, version uint32
	dtype          array.DType
}

var llmcKinds = []llmcKind{{20240520, 1, array.Uint16}, {20240801, 7, array.Uint32}}

// LLMCHeader returns the header of a file of tokens of width bytes, 2 or 4.
func LLMCHeader(tokens int64, width int) []byte {
	kind := llmcKinds[width/4]
	raw := make([]byte, llmcHeader)
	binary.LittleEndian.PutUint32(raw, kind.magic)
	binary.LittleEndian.PutUint32(raw[4:], kind.version)
	binary.LittleEndian.PutUint32(raw[8:], uint32(tokens))
	return raw
}

func parseLLMC(in *Input) (f Format, matches bool, err error) {
	first, err := in.head(4)
	i := slices.IndexFunc(llmcKinds, func(k llmcKind) bool { return string(first) == string(binary.LittleEndian.AppendUint32(nil, k.magic)) })
	if err != nil || i < 0 {
		return f, false, err
	}
	raw, err := in.read(0, llmcHeader)
	if err != nil {
		return f, true, err
	}
	kind, version := llmcKinds[i], binary.LittleEndian.Uint32(raw[4:])
	if version != kind.version {
		return f, true, fmt.Errorf("%s is a token file of llm.c of version %d with the magic number %d, but batchfs reads version %d",
			in.Path, version, kind.magic, kind.version)
	}
	f = Format{Offset: llmcHeader, DType: kind.dtype}
	return f, true, f.setShape(in.Path, []int64{int64(binary.LittleEndian.Uint32(raw[8:]))}, in.Size-llmcHeader)
}
