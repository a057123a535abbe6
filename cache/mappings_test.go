package cache

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"batchfs/internal/wait"
)

// tooMany is more than a process may have mappings, unless somebody raised vm.max_map_count.
const tooMany = 70_000

// A read may have more ranges than a process may have mappings.
func TestReadOfManyRanges(t *testing.T) {
	page := os.Getpagesize()
	path := filepath.Join(t.TempDir(), "holes.bin")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, int64(2*tooMany*faultAround*page))) // so large that it is not mapped whole
	for _, access := range []Access{Remap, Advise, Pread} {
		tokens := open(t, []string{path}, Options{DType: "uint16", Access: access})
		ws := make([]Window, tooMany)
		for i := range ws {
			ws[i] = Window{int64(i % 64 * page), 3}
		}
		seen := make([]bool, len(ws))
		must(t, tokens.Read(ws, func(i int, raw []byte) error {
			seen[i] = len(raw) == 6
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
	ws := make([]Window, 1000)
	for first := 0; first < tooMany; first += len(ws) {
		for i := range ws {
			ws[i] = Window{int64(first+i) * 10, 10}
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
