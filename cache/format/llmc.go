package format

import (
	"encoding/binary"
	"fmt"

	"batchfs/cache/array"
)

// Token files of llm.c, and of modded-nanogpt: 256 int32, of which the first three say what follows, and the tokens.
const (
	llmcHeader = 256 * 4
	llmcMagic  = 20240520 // version 1: uint16 tokens
	llama3     = 20240801 // version 7: uint32 tokens
)

func isLLMC(in *Input) (bool, error) {
	if in.Size < 4 {
		return false, nil
	}
	first, err := in.read(0, 4)
	if err != nil {
		return false, err
	}
	magic := binary.LittleEndian.Uint32(first)
	return magic == llmcMagic || magic == llama3, nil
}

func parseLLMC(in *Input) (f Format, err error) {
	raw, err := in.read(0, llmcHeader)
	if err != nil {
		return f, err
	}
	magic, version, tokens := binary.LittleEndian.Uint32(raw), binary.LittleEndian.Uint32(raw[4:]), binary.LittleEndian.Uint32(raw[8:])
	f = Format{Offset: llmcHeader, DType: array.Uint16, Count: int64(tokens)}
	known := uint32(1)
	if magic == llama3 {
		f.DType, known = array.Uint32, 7
	}
	if version != known {
		return f, fmt.Errorf("%s is a token file of llm.c of version %d with the number %d, where batchfs knows version %d",
			in.Path, version, magic, known)
	}
	return f, in.lengths(llmcHeader, uint64(tokens), int64(f.DType.Size()))
}
