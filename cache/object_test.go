package cache

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blocks"
	"batchfs/cache/store"
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

// The files of blocks stay open, until they are removed from the directory: then their space is free although nobody reads.
func TestRemovedBlocksAreClosed(t *testing.T) {
	const count, size = 8, 64 << 10
	paths, dir := files(t, 2, count*size/2), t.TempDir()
	a := open(t, []string{"s3://bucket/" + filepath.Base(paths[0])}, Options{DType: array.Uint16, Access: Pread, Remote: Remote{
		Store:  store.Options{Endpoint: serveFiles(t, filepath.Dir(paths[0])), Anonymous: true, Timeout: time.Minute},
		Blocks: blocks.Options{Dir: dir, Limit: 1 << 30, BlockBytes: size, Memory: 2 * size},
	}})
	read := func() {
		for i := range count {
			must(t, a.Read([]array.Window{{Start: int64(i) * size / 2, Len: size / 2}}, func(int, []byte) error { return nil }))
		}
		Flush()
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
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		a.shards[0].blob.(*object).closeRemoved()
		runtime.GC()
		n, removed := openBlocks(dir)
		if n == count-len(kept) && removed == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are open, %d of them removed, want %d and none", n, removed, count-len(kept))
		}
	}
}
