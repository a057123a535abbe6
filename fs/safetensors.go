package fs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// safetensorsHeader is what stands before batch k in a .safetensors file: the length of the rest as a little-endian
// uint64, then JSON that names the tensors, padded with spaces to stdioBlock, for the reasons of [NPYHeader].
// Format: https://huggingface.co/docs/safetensors
func (s *Sequence) safetensorsHeader(k uint64) []byte {
	type tensor struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	dtype := map[string]string{"uint16": "U16", "uint32": "U32", "int32": "I32", "int64": "I64"}[s.DType]
	metadata := map[string]string{"batch": fmt.Sprint(k)}
	maps.Copy(metadata, s.Metadata)
	header := map[string]any{"__metadata__": metadata}
	if half := s.BatchBytes / 2; len(s.Shape) == 3 {
		header["x"] = tensor{dtype, s.Shape[1:], [2]int64{0, half}}
		header["y"] = tensor{dtype, s.Shape[1:], [2]int64{half, s.BatchBytes}}
	} else {
		header["tokens"] = tensor{dtype, s.Shape, [2]int64{0, s.BatchBytes}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // only of types that JSON does not have
	}
	const prefix = 8
	padded := string(text) + strings.Repeat(" ", stdioBlock-prefix-len(text))
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(padded))), padded...)
}
