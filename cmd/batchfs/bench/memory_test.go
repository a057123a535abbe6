package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/internal/testfiles"
)

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
	if n, err := pageCacheBytes(path); err != nil || n != size {
		t.Errorf("%d bytes in the page cache (%v), want %d", n, err, size)
	}
}
