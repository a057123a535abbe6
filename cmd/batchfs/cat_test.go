package main

import (
	"bytes"
	"os"
	"strings"
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

// If a file changes under cat, which may have no mount, the error says what to do then.
func TestCatOfChangedFile(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("\x00\x01", 1000)})
	cmd := catCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(writerFunc(func(p []byte) (int, error) { return len(p), os.Truncate("a.bin", 1000) }))
	cmd.SetArgs([]string{"train", "--count", "0", "--set", "splits.train.tokens=a.bin", "--set", "batch.block_size=8"})
	const want = "without a mount, run the command again"
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
