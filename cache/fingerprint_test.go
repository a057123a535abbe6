package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"batchfs/cache/array"
)

func fingerprint(t testing.TB, sources ...[]string) string {
	t.Helper()
	files := len(slices.Concat(sources...))
	apart, joined, again := NewFingerprint(files), NewFingerprint(files), NewFingerprint(files)
	for _, paths := range sources {
		open(t, paths, Options{DType: array.Uint16, Fingerprint: apart})
		open(t, paths, Options{DType: array.Uint16, Fingerprint: joined, Join: true})
		must(t, open(t, paths, Options{DType: array.Uint16}).AddTo(again))
	}
	if apart.String() != joined.String() || apart.String() != again.String() {
		t.Errorf("fingerprint %s, joined %s, added again %s", apart, joined, again)
	}
	return apart.String()
}

// The fingerprint follows its definition at Fingerprint.String. How files are distributed over
// sources does not matter.
func TestFingerprintIsAsDefined(t *testing.T) {
	for _, test := range []struct {
		lens   []int
		blocks int
	}{
		{[]int{500_001, 3}, 32},
		{[]int{500_001}, 64},
		{append(slices.Repeat([]int{5}, 35), 100_000, 4096, 4097, 2048, 8000), 2},
		{append(slices.Repeat([]int{5}, 15), 100_000, 5000), 3},
	} {
		paths := writeFiles(t, 2, test.lens...)
		sum := sha256.New()
		for _, path := range paths {
			raw, err := os.ReadFile(path)
			must(t, err)
			fmt.Fprintf(sum, "%s\x00", filepath.Base(path))
			must(t, binary.Write(sum, binary.LittleEndian, int64(len(raw))))
			if len(raw) <= test.blocks*4096 {
				sum.Write(raw)
				continue
			}
			for i := range test.blocks {
				sum.Write(raw[(len(raw)-4096)*i/(test.blocks-1):][:4096])
			}
		}
		want := fmt.Sprintf("%x", sum.Sum(nil)[:16])
		for _, cut := range []int{0, 1, len(paths) / 2, len(paths)} {
			var sources [][]string
			for _, source := range [][]string{paths[:cut], paths[cut:]} {
				if len(source) > 0 {
					sources = append(sources, source)
				}
			}
			if got := fingerprint(t, sources...); got != want {
				t.Errorf("%d files, %d of them in the first source: fingerprint %s, want %s", len(paths), cut, got, want)
			}
		}
	}
}
