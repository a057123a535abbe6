package blob

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"batchfs/cache/blocks"
	"batchfs/cache/store"
	"batchfs/internal/wait"
)

// openBlocks is how many files of blocks in a directory this process has open, and how many of them were removed.
func openBlocks(dir string) (open, removed int) {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.HasPrefix(target, dir) {
			open++
			if strings.HasSuffix(target, " (deleted)") {
				removed++
			}
		}
	}
	return open, removed
}

// The files of blocks stay open until they are removed from the directory; then their space is freed, also without a read.
func TestRemovedBlocksAreClosed(t *testing.T) {
	const count, size = 8, 64 << 10
	path, _ := tokens(t, count*size)
	dir, name := t.TempDir(), "s3://bucket/"+filepath.Base(path)
	remote := &Remote{
		Store:  store.Options{Endpoint: serveFiles(t, filepath.Dir(path)), Anonymous: true, Timeout: time.Minute},
		Blocks: blocks.Options{Dir: dir, Limit: 1 << 30, BlockBytes: size, Memory: 2 * size},
	}
	id, _, err := Open(name, nil, remote)
	must(t, err)
	o, err := New([]byte(name), id, Sample{}, Pread, false, remote)
	must(t, err)
	read := func() {
		for i := range count {
			must(t, o.Read([]Range{{int64(i) * size, int64(i+1) * size, 0}}, func(int, []byte) error { return nil }))
		}
		remote.Flush()
	}
	read()
	read()
	if n, removed := openBlocks(dir); n != count || removed > 0 {
		t.Fatalf("%d files of %d blocks are open, %d of them removed", n, count, removed)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "*", "[0-4]"))
	must(t, err)
	for _, path := range kept {
		must(t, os.Remove(path))
	}
	wait.Until(t, "removed blocks are closed, and others stay open", func() bool {
		o.(*Object).closeRemoved()
		runtime.GC()
		n, removed := openBlocks(dir)
		return n == count-len(kept) && removed == 0
	})
}

// serveFiles serves the files of a directory as objects of s3://bucket.
func serveFiles(t testing.TB, dir string) (endpoint string) {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/bucket", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeFile(w, r, filepath.Join(dir, r.URL.Path))
	})))
	t.Cleanup(server.Close)
	return server.URL
}
