package fs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// safetensorsHeader stands before batch k in a .safetensors file: the length of the rest as a little-endian uint64, then JSON
// that names the tensors, padded with spaces to headerBytes.
// Format: https://huggingface.co/docs/safetensors
func safetensorsHeader(s Sequence, _ inode, k uint64) []byte {
	type tensor struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	metadata := map[string]string{"batch": fmt.Sprint(k)}
	maps.Copy(metadata, s.Spec().Metadata)
	header := map[string]any{"__metadata__": metadata}
	for _, a := range s.Spec().Batch.Arrays {
		header[a.Name] = tensor{a.DType.Safetensors(), a.Shape, [2]int64{a.Offset, a.Offset + a.Bytes()}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // only of types that JSON does not have
	}
	const prefix = 8
	padded := string(text) + strings.Repeat(" ", headerBytes-prefix-len(text))
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(padded))), padded...)
}
