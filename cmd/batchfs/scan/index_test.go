package scan

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/internal/testfiles"
)

// A killed run may leave its unfinished index behind, and the process of the next one may have the
// same number, as in a container.
func TestIndexAfterKilledRun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.bin")
	testfiles.Write(t, map[string]string{path: "\x01\x00\x02\x00", filepath.Join(dir, fmt.Sprintf(".a.bin.index-%d", os.Getpid())): "unfinished"})
	index, err := WriteIndex(t.Context(), path, cache.Options{DType: array.Uint16, Format: "auto"}, 2, false, io.Discard)
	if err != nil || index.Documents != 1 {
		t.Error(index, err)
	}
}
