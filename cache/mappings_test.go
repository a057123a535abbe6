package cache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/internal/wait"
)

// tooMany is more than a process may have mappings, unless somebody raised vm.max_map_count.
const tooMany = 70_000

// Under Remap, a read maps each file once, and unmaps it. Reads meanwhile, of that file and of others, map nothing and do not wait,
// nor does a read of short windows map.
func TestOneReadMapsAtATime(t *testing.T) {
	paths := files(t, 2, 30_000, 30_000, 30_000)
	tokens := open(t, paths, Options{DType: "uint16", Access: Remap})
	var long, short []array.Window
	for i := range 5 * maxRanges {
		start := int64(i%3)*30_000 + int64(i)*11
		long, short = append(long, array.Window{Start: start, Len: 300 + 300*(i%30)}), append(short, array.Window{Start: start, Len: 1 + i%100})
	}
	once := long[:12]
	mappings := func() (n int) {
		maps, err := os.ReadFile("/proc/self/maps")
		must(t, err)
		return strings.Count(string(maps), filepath.Dir(paths[0]))
	}
	read := func(ws []array.Window, mapped, busy int64, visit func()) {
		t.Helper()
		mappedBefore, busyBefore := Remaps()
		must(t, tokens.Read(ws, func(i int, raw []byte) error {
			if w := ws[i]; !bytes.Equal(raw, count(int(w.Start), w.Len, 2)) {
				return fmt.Errorf("window %+v holds %x", w, raw)
			}
			visit()
			return nil
		}))
		if m, b := Remaps(); m-mappedBefore != mapped || b-busyBefore != busy {
			t.Errorf("%d windows: %d reads of a file mapped it, and %d found another mapping; want %d and %d", len(ws), m-mappedBefore, b-busyBefore, mapped, busy)
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

// A read may have more ranges than a process may have mappings.
func TestReadOfManyRanges(t *testing.T) {
	page := os.Getpagesize()
	path := filepath.Join(t.TempDir(), "holes.bin")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, int64(2*tooMany*page)))
	for _, access := range []Access{Remap, Advise, Pread} {
		tokens := open(t, []string{path}, Options{DType: "uint16", Access: access})
		ws := make([]array.Window, tooMany)
		for i := range ws {
			ws[i] = array.Window{Start: int64(i % 64 * page), Len: minMapped}
		}
		seen := make([]bool, len(ws))
		must(t, tokens.Read(ws, func(i int, raw []byte) error {
			seen[i] = len(raw) == 2*minMapped
			return nil
		}))
		for i, ok := range seen {
			if !ok {
				t.Fatalf("%s: window %d was not visited", access, i)
			}
		}
	}
}

// There may be more files than a process may have mappings.
func TestKeptMappingsAreBounded(t *testing.T) {
	path := files(t, 2, 10)[0]
	m := open(t, []string{path}, Options{DType: "uint16"}).Manifest()
	for len(m.Files) < tooMany {
		m.Files = append(m.Files, m.Files[0])
	}
	tokens, err := Reopen(m, Options{Access: Advise})
	must(t, err)
	want := count(0, 10, 2)
	ws := make([]array.Window, 1000)
	for first := 0; first < tooMany; first += len(ws) {
		for i := range ws {
			ws[i] = array.Window{Start: int64(first+i) * 10, Len: 10}
		}
		must(t, tokens.Read(ws, func(_ int, raw []byte) error {
			if string(raw) != string(want) {
				t.Errorf("tokens are %x", raw)
			}
			return nil
		}))
	}
	if n := keptMappings.Load(); n > maxKept || n < maxKept/2 {
		t.Errorf("%d mappings are kept, of up to %d", n, maxKept)
	}
	tokens.Release()
	wait.Until(t, "few mappings are kept of tokens that were released", func() bool {
		runtime.GC()
		return keptMappings.Load() <= maxKept/2
	})
	must(t, readOne(tokens))
}
