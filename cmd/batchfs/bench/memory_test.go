package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/internal/testfiles"
)

func TestLogarithmic(t *testing.T) {
	for last, want := range map[int][]int{1: {1}, 2: {1, 2}, 10: {1, 10}, 300: {1, 10, 100, 300}} {
		if got := powersOfTen(last); !slices.Equal(got, want) {
			t.Errorf("logarithmic(%d) = %d, want %d", last, got, want)
		}
	}
}

func TestUsage(t *testing.T) {
	u, err := usageOf(os.Getpid())
	testfiles.NoError(t, err)
	for name, n := range map[string]int64{
		"rss": u.Resident, "rss_anon": u.RssAnon, "rss_file": u.RssFile,
	} {
		if n <= 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

func TestPageCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	testfiles.Write(t, map[string]string{path: strings.Repeat("\x00", 1<<20+1)})
	testfiles.NoError(t, errors.Join(dropPages(path), warmUp(path, unix.FADV_RANDOM)))
	size := int64(1<<20 + os.Getpagesize())
	if n, err := pageCache(path); err != nil || n != size {
		t.Errorf("%d bytes in the page cache (%v), want %d", n, err, size)
	}
}

func TestMemoryLines(t *testing.T) {
	samples := []sample{
		{1, 0, usage{Resident: 32 << 20}, usage{Resident: 15 << 20}},
		{2, 8 << 20, usage{Resident: 33 << 20}, usage{Resident: 16 << 20}},
	}
	resident, cache := memoryLines([]loading{
		{Name: "kept", cached: true, Samples: samples},
		{Name: "remap", cached: true, sets: []string{"memory.access=remap"}, Samples: samples},
		{Name: "keep", sets: []string{"memory.page_cache=keep"}, Samples: samples},
	})
	var b strings.Builder
	printLines(&b, "MiB, after", resident)
	printLines(&b, "MiB, after", cache)
	want := `
MiB, after                                              1      2
kept                                                   32     33
remap                                                  15     16
remap: its trainer                                     32     33

MiB, after                                              1      2
keep                                                    0      8

`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
