package blob

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/cache/blocks"
	"batchfs/cache/localfile"
	"batchfs/cache/store"
	"batchfs/internal/require"
)

var must = require.NoError

// countOpenBlocks returns the number and total size of the files in dir that this process has open.
func countOpenBlocks(dir string) (open int, bytes int64) {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.HasPrefix(target, dir+"/") {
			if info, err := os.Stat(fd); err == nil {
				open, bytes = open+1, bytes+info.Size()
			}
		}
	}
	return open, bytes
}

// Block files stay open between reads, but a removed one takes no space, and its block is fetched
// again.
func TestRemovedBlocksTakeNoSpace(t *testing.T) {
	const count, size = 8, 64 << 10
	raw := make([]byte, count*size)
	for i := range raw {
		raw[i] = byte(i)
	}
	path := filepath.Join(t.TempDir(), "train.bin")
	must(t, os.WriteFile(path, raw, 0o600))
	dir, name := t.TempDir(), "s3://bucket/"+filepath.Base(path)
	remote := &Remote{
		Store:  store.Options{Endpoint: serveFiles(t, filepath.Dir(path)), Anonymous: true, Timeout: time.Minute},
		Blocks: blocks.Options{Dir: dir, Limit: 1 << 30, BlockBytes: size, Memory: 2 * size},
	}
	stamp, _, err := Open(name, nil, remote)
	must(t, err)
	o, err := New([]byte(name), stamp, localfile.Sample{}, localfile.Options{Access: localfile.Remap}, remote)
	must(t, err)
	read := func() {
		for i := range int64(count) {
			must(t, o.Read([]localfile.Range{{From: i * size, To: (i + 1) * size}}, func(_ int, raw []byte) error {
				if len(raw) != size || raw[1] != 1 || raw[size-1] != 255 {
					t.Errorf("block %d has other bytes", i)
				}
				return nil
			}))
		}
		remote.Flush()
	}
	read()
	read()
	if n, _ := countOpenBlocks(dir); n != count {
		t.Errorf("%d files of %d blocks are open", n, count)
	}
	_, err = blocks.Prune(remote.Blocks)
	must(t, err)
	if n, bytes := countOpenBlocks(dir); bytes > 0 {
		t.Errorf("%d files of removed blocks take %d bytes", n, bytes)
	}
	read()
}

// A sample of an object is read from the store, and never from an object that has replaced it.
func TestSampleOfAnObject(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.bin")
	must(t, os.WriteFile(path, []byte("0123"), 0o600))
	must(t, os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)))
	name := "s3://bucket/" + filepath.Base(path)
	remote := &Remote{
		Store:  store.Options{Endpoint: serveFiles(t, filepath.Dir(path)), Anonymous: true, Timeout: time.Minute},
		Blocks: blocks.Options{BlockBytes: 1 << 16},
	}
	stamp, content, err := Open(name, nil, remote)
	must(t, err)
	want, err := localfile.NewSample(content, stamp.Size, 7, func(int64, []byte) {})
	must(t, err)
	o, err := New([]byte(name), stamp, localfile.Sample{}, localfile.Options{}, remote)
	must(t, err)
	if got, err := o.ReadSample(7, func(int64, []byte) {}); err != nil || got != want {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	must(t, os.WriteFile(path, []byte("4567"), 0o600))
	_, err = o.ReadSample(7, func(int64, []byte) {})
	if later := o.Check(); !errors.Is(err, syscall.ESTALE) || !errors.Is(later, syscall.ESTALE) {
		t.Errorf("of an object that was replaced: %v; checked later: %v", err, later)
	}
}

// serveFiles serves the files of a directory as objects of s3://bucket.
func serveFiles(t testing.TB, dir string) (endpoint string) {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/bucket", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := filepath.Join(dir, r.URL.Path)
		if info, err := os.Stat(path); err == nil {
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, info.ModTime().UnixNano()))
		}
		http.ServeFile(w, r, path)
	})))
	t.Cleanup(server.Close)
	return server.URL
}
