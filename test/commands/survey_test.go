package commands

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A report is what check prints with --json.
type report struct {
	OK       bool
	Tokens   int64
	Compared bool `json:"vocabulary_known"`
}

// check runs check --json with a cache directory. The command must exit with 0 if there is no
// problem, and otherwise with 1 and no message.
func check(t *testing.T, cache string, args ...string) (r report) {
	t.Helper()
	out, stderr, err := e2e.Try(t, append([]string{"env", "XDG_CACHE_HOME=" + cache, e2e.PlainBatchfs, "check", "--json"}, args...)...)
	if json.Unmarshal([]byte(out), &r) != nil || stderr != "" || r.OK != (err == nil) {
		t.Fatalf("check %q: error %v, want JSON and no message\n%s%s", args, err, out, stderr)
	}
	return r
}

// check finds no problem in what prepare wrote, also as a path in a mount.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	e2e.Write(t, filepath.Join(dir, "book.txt"), []byte(strings.Repeat("All work and no play.\n", 50)))
	e2e.Run(t, e2e.Batchfs, "prepare", filepath.Join(dir, "book.txt"), "--out", filepath.Join(dir, "data"))
	args := []string{"--data", filepath.Join(dir, "data"), "--set", "batch.block_size=8"}
	if r := check(t, dir, append(args, "train", "val", "--overlap", "2000")...); !r.OK || r.Tokens != 1100 || !r.Compared {
		t.Errorf("check of prepared files: %+v, want 1100 tokens and no problem", r)
	}
	m := e2e.Mount(t, args...)
	if r := check(t, dir, m.Path("val/rank=1,world=2")); !r.OK || r.Tokens != 110 {
		t.Errorf("check of a path in a mount: %+v, want 110 tokens and no problem", r)
	}
}
