package commands

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A report is what check prints with --json.
type report struct {
	OK       bool                          `json:"ok"`
	Tokens   int64                         `json:"tokens"`
	Compared bool                          `json:"vocabulary_known"`
	Problems []struct{ Kind, File string } `json:"problems"`
}

// check runs check --json with a cache directory, which must end with status 0 if nothing is wrong, and else with status 1 and no message.
func check(t *testing.T, cache string, args ...string) (r report) {
	t.Helper()
	out, stderr, err := e2e.Try(t, append([]string{"env", "XDG_CACHE_HOME=" + cache, e2e.PlainBatchfs, "check", "--json"}, args...)...)
	if json.Unmarshal([]byte(out), &r) != nil || stderr != "" || r.OK != (err == nil) {
		t.Fatalf("check %q: %v\n%s%s", args, err, out, stderr)
	}
	return r
}

// What prepare writes is in order, also as a mount has it. The same shard twice is not.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	e2e.Write(t, filepath.Join(dir, "book.txt"), []byte(strings.Repeat("All work and no play.\n", 50)))
	e2e.Run(t, e2e.Batchfs, "prepare", filepath.Join(dir, "book.txt"), "--out", filepath.Join(dir, "data"))
	args := []string{"--data", filepath.Join(dir, "data"), "--set", "batch.block_size=8"}
	if r := check(t, dir, append(args, "train", "val", "--overlap", "2000")...); !r.OK || r.Tokens != 1100 || !r.Compared {
		t.Errorf("%+v", r)
	}
	m := e2e.Mount(t, args...)
	if r := check(t, dir, m.Path("val/rank=1,world=2")); !r.OK || r.Tokens != 110 {
		t.Errorf("of a mount: %+v", r)
	}
	shard := e2e.Tokens(t, filepath.Join(dir, "a.bin"), 3000, 2)
	twice := filepath.Join(dir, "b.bin")
	e2e.Run(t, "cp", shard, twice)
	args = []string{"train", "--set", fmt.Sprintf("splits.train.tokens=[%q, %q]", shard, twice), "--set", "batch.token_dtype=uint16"}
	if r := check(t, dir, args...); len(r.Problems) != 1 || r.Problems[0].Kind != "duplicate" || r.Problems[0].File != twice {
		t.Errorf("%+v", r)
	}
	out, _, err := e2e.Try(t, append([]string{e2e.Batchfs, "check"}, args...)...)
	if !strings.Contains(out, "b.bin has the same content as") || !strings.Contains(out, "2 files, 6000 tokens") || err == nil {
		t.Errorf("%v\n%s", err, out)
	}
}
