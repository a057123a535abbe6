package cache

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/localfile"
	"batchfs/internal/testwait"
)

// copyOver replaces a file with a copy with the same mtime. change may modify the content.
func copyOver(t *testing.T, path string, change func(raw []byte)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	change(raw)
	must(t, replace(path, raw))
}

func noChange([]byte) {}

// A copy with the same mtime counts as the same file: for readers in progress, for new ones, and
// for another process.
func TestCopyOfAFileIsTheFile(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		paths := writeFiles(t, 2, 10, 100_000)
		tokens := open(t, paths, o)
		ws := func() []array.Window {
			return []array.Window{{Len: 10}, {Start: 10, Len: 5000}, {Start: 99_000, Len: 1000}}
		}
		must(t, readAll(tokens, ws()))
		successor := reopened(t, tokens, o)
		for range 3 {
			copyOver(t, paths[1], noChange)
			for _, tokens := range []*Array{tokens, successor} {
				must(t, tokens.checkAll())
				must(t, readAll(tokens, ws()))
			}
			copyOver(t, paths[1], noChange) // now a read, not a check, notices the copy
			must(t, readAll(tokens, ws()))
			// Replace the file during a read.
			must(t, tokens.Read(ws()[1:2], func(_ int, raw []byte) error {
				copyOver(t, paths[1], noChange)
				return nil
			}))
			must(t, readAll(tokens, ws()))
		}
		if tokens.Manifest().Files[1].Identity != open(t, paths, o).Manifest().Files[1].Identity {
			t.Error("the manifest has another stamp than the file")
		}
	})
}

// A file with the same size and mtime but other content is another file.
func TestOtherFileOfTheSameTimeIsAnother(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		paths := writeFiles(t, 2, 100_000)
		tokens := open(t, paths, o)
		must(t, readOne(tokens))
		successor := reopened(t, tokens, o)
		must(t, os.Link(paths[0], paths[0]+".old"))
		for _, at := range []int{0, 199_999} { // the first and the last sampled block
			copyOver(t, paths[0], func(raw []byte) { raw[at]++ })
			for range 2 {
				for _, tokens := range []*Array{tokens, successor} {
					for _, err := range []error{tokens.checkAll(), readOne(tokens)} {
						if !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), "another file is in its place") {
							t.Errorf("byte %d: error %v, want ESTALE", at, err)
						}
					}
				}
			}
			must(t, os.Link(paths[0]+".old", paths[0]+".back"))
			must(t, os.Rename(paths[0]+".back", paths[0]))
			must(t, readOne(tokens))
			must(t, readOne(successor))
		}
	})
}

// Reads succeed while a file is replaced by copies again and again.
func TestCopiesUnderReaders(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		paths := writeFiles(t, 2, 50_000)
		tokens := open(t, paths, o)
		var stop atomic.Bool
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for !stop.Load() {
					if err := errors.Join(readAll(tokens, []array.Window{{Start: 100, Len: 3000}, {Start: 40_000, Len: 10}}), tokens.checkAll()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range rounds(25) {
			copyOver(t, paths[0], noChange)
			must(t, readOne(tokens))
		}
		stop.Store(true)
		testwait.End(t, "the goroutines", wg.Wait)
	})
}

// The mapping of a replaced file is no longer read, because a process that has the old file open
// may write to it.
func TestReplacedMappingIsNotRead(t *testing.T) {
	paths := writeFiles(t, 2, 10_000)
	tokens := open(t, paths, Options{DType: "uint16", Reading: localfile.Options{Access: localfile.Advise}})
	must(t, readOne(tokens))
	old, err := os.OpenFile(paths[0], os.O_RDWR, 0)
	must(t, err)
	defer old.Close()
	copyOver(t, paths[0], noChange)
	_, err = old.Write(bytes.Repeat([]byte{0xee}, 20_000))
	must(t, err)
	must(t, readAll(tokens, []array.Window{{Start: 0, Len: 10_000}}))
}
