package cache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/counts"
	"batchfs/cache/localfile"
)

// Under Remap, a read maps each of its files once. Concurrent reads, of any file, neither map nor
// wait, and a read of short windows does not map.
func TestOneReadMapsAtATime(t *testing.T) {
	paths := writeFiles(t, 2, 30_000, 30_000, 30_000)
	maps := new(counts.Maps)
	tokens := open(t, paths, Options{DType: "uint16", Reading: localfile.Options{Access: localfile.Remap, Maps: maps}})
	var long, short []array.Window
	for i := range 1280 {
		start := int64(i%3)*30_000 + int64(i)*11
		long, short = append(long, array.Window{Start: start, Len: 300 + 300*(i%30)}), append(short, array.Window{Start: start, Len: 1 + i%100})
	}
	once := long[:12]
	mappings := func() (n int) {
		list, err := os.ReadFile("/proc/self/maps")
		must(t, err)
		return strings.Count(string(list), filepath.Dir(paths[0]))
	}
	read := func(ws []array.Window, mapped, busy int64, visit func()) {
		t.Helper()
		maps.Mapped.Store(0)
		maps.Busy.Store(0)
		must(t, tokens.Read(ws, func(i int, raw []byte) error {
			if w := ws[i]; !bytes.Equal(raw, tokenBytes(int(w.Start), w.Len, 2)) {
				return fmt.Errorf("window %+v holds %x", w, raw)
			}
			visit()
			return nil
		}))
		if m, b := maps.Mapped.Load(), maps.Busy.Load(); m != mapped || b != busy {
			t.Errorf("%d windows: %d reads of a file mapped it, and %d found another mapping; want %d and %d", len(ws), m, b, mapped, busy)
		}
	}
	want := func(n int) func() {
		return func() {
			if got := mappings(); got != n {
				t.Errorf("%d mappings, want %d", got, n)
			}
		}
	}
	read(once, 3, 0, want(1))
	read(long, 3, 0, func() {})
	read(short, 0, 0, want(0))
	read(once, 3, 3*int64(len(once)), func() {
		must(t, readAll(tokens, once))
		want(1)()
	})
	want(0)()
}
