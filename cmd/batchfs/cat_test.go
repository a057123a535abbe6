package main

import (
	"bytes"
	"testing"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/fs/header"
)

// Raw output contains only the main arrays of each batch, even if a batch is larger than the
// buffer.
func TestWriteBatchesOfSeveralArrays(t *testing.T) {
	for _, columns := range []int{5, 300_000} {
		shape := []int{1, columns}
		x, y := array.Descriptor{Name: "x", DType: array.Uint16, Shape: shape}, array.Descriptor{Name: "y", DType: array.Uint16, Shape: shape}
		mask := array.Descriptor{Name: "mask", DType: array.Int64, Shape: []int{3}}
		for _, batch := range []array.Batch{array.NewBatch(2, x, y), array.NewBatch(2, x, y, mask)} {
			value := func(k uint64, at int64) byte { return byte(int64(k)*31 + at%251) }
			var want, got bytes.Buffer
			for k := range uint64(3) {
				for at := range batch.MainBytes() {
					want.WriteByte(value(7+k, at))
				}
			}
			read := func(dst []byte, k uint64, off int64) error {
				for i := range dst {
					dst[i] = value(k+uint64(off/batch.Bytes()), off%batch.Bytes())
					off++
				}
				return nil
			}
			testfiles.NoError(t, writeBatches(&got, header.Frame{Batch: &batch, Array: header.MainArrays}, nil, read, 7, 3))
			if !bytes.Equal(got.Bytes(), want.Bytes()) {
				t.Errorf("%d columns, %d arrays: %d bytes, want %d others", columns, len(batch.Arrays), got.Len(), want.Len())
			}
		}
	}
}
