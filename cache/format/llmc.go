package format

import (
	"encoding/binary"
	"fmt"

	"batchfs/cache/array"
)

// Token files of llm.c, and of modded-nanogpt: 256 int32, the first three of which are a magic number, a version and the count of
// tokens; then the tokens.
const llmcHeader = 256 * 4

// MaxLLMC is how many tokens a file of llm.c may have.
const MaxLLMC = 1<<31 - 1

// An llmcKind is the first two int32 of a header, and the dtype that they mean.
type llmcKind struct {
	magic, version uint32
	dtype          array.DType
}

var llmcKinds = []llmcKind{{20240520, 1, array.Uint16}, {20240801, 7, array.Uint32}}

// LLMCHeader is the header of a file of tokens of width bytes, 2 or 4.
func LLMCHeader(tokens int64, width int) []byte {
	kind := llmcKinds[width/4]
	raw := make([]byte, llmcHeader)
	binary.LittleEndian.PutUint32(raw, kind.magic)
	binary.LittleEndian.PutUint32(raw[4:], kind.version)
	binary.LittleEndian.PutUint32(raw[8:], uint32(tokens))
	return raw
}

// llmcKindOf returns nil for a magic number that is none.
func llmcKindOf(magic []byte) *llmcKind {
	for i := range llmcKinds {
		if binary.LittleEndian.Uint32(magic) == llmcKinds[i].magic {
			return &llmcKinds[i]
		}
	}
	return nil
}

func isLLMC(in *Input) (bool, error) {
	if in.Size < 4 {
		return false, nil
	}
	first, err := in.read(0, 4)
	return err == nil && llmcKindOf(first) != nil, err
}

func parseLLMC(in *Input) (f Format, err error) {
	raw, err := in.read(0, llmcHeader)
	if err != nil {
		return f, err
	}
	kind, version, tokens := llmcKindOf(raw), binary.LittleEndian.Uint32(raw[4:]), binary.LittleEndian.Uint32(raw[8:])
	if version != kind.version {
		return f, fmt.Errorf("%s is a token file of llm.c of version %d with the number %d, where batchfs knows version %d",
			in.Path, version, kind.magic, kind.version)
	}
	f = Format{Offset: llmcHeader, DType: kind.dtype, Count: int64(tokens)}
	return f, in.lengths(llmcHeader, uint64(tokens), int64(f.DType.Size()))
}
