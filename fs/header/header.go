// Package header describes the layout of files of batches as a [Frame], and encodes their headers.
package header

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"batchfs/cache/array"
)

// Bytes is the length of every header: a page, so that a mapped array is aligned, and so that C's
// fseek to the array does not read the header again, which would take the next batch of next.npy.
const Bytes = 4096

// Safetensors returns the header of a .safetensors file of batch k: the length of the rest as a
// little-endian uint64, then JSON with the tensors, the metadata and k, padded with spaces.
//
// Format: https://huggingface.co/docs/safetensors
func Safetensors(batch array.Batch, metadata map[string]string, k uint64) []byte {
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
		panic(err) // impossible for these types
	}
	const prefix = 8
	padding := strings.Repeat(" ", Bytes-prefix-len(text))
	return append(append(binary.LittleEndian.AppendUint64(nil, Bytes-prefix), text...), padding...)
}
