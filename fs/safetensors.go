package fs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"batchfs/cache/array"
)

func safetensorsHeader(s *Sequence, _ inode, k uint64) []byte {
	return SafetensorsHeader(s.Batch, s.Metadata, k)
}

// SafetensorsHeader is the header of a .safetensors file of batch k: the length of the rest as a little-endian uint64, then JSON that
// names the tensors, padded with spaces to 4096 bytes. metadata is what the JSON says besides the number of the batch.
// Format: https://huggingface.co/docs/safetensors
func SafetensorsHeader(batch array.Batch, metadata map[string]string, k uint64) []byte {
	type tensor struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	all := map[string]string{"batch": fmt.Sprint(k)}
	maps.Copy(all, metadata)
	header := map[string]any{"__metadata__": all}
	for _, a := range batch.Arrays {
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
