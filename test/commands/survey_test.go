package commands

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// A report is what check prints with --json.
type report struct {
	OK       bool                                   `json:"ok"`
	Tokens   int64                                  `json:"tokens"`
	Resumed  int64                                  `json:"bytes_resumed"`
	Compared bool                                   `json:"vocabulary_known"`
	Problems []struct{ Kind, File, Message string } `json:"problems"`
}

func (r report) kinds() (list []string) {
	for _, p := range r.Problems {
		list = append(list, p.Kind)
	}
	return list
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

// What prepare writes is in order, also as a mount has it. The same shard twice, and tokens beyond the vocabulary, are not.
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
	m.Stop(t)

	shard := e2e.Tokens(t, filepath.Join(dir, "a.bin"), 3000, 2)
	twice := filepath.Join(dir, "b.bin")
	e2e.Run(t, "cp", shard, twice)
	set := fmt.Sprintf("splits.train.tokens=[%q, %q]", shard, twice)
	r := check(t, dir, "train", "--set", set, "--set", "batch.vocab_size=2999", "--set", "batch.token_dtype=uint16")
	if got := fmt.Sprint(r.kinds()); got != "[vocabulary vocabulary duplicate]" || r.Problems[2].File != twice {
		t.Errorf("%s: %+v", got, r)
	}
	out, _, err := e2e.Try(t, e2e.Batchfs, "check", "train", "--set", set, "--set", "batch.token_dtype=uint16")
	if !strings.Contains(out, "b.bin holds the same as") || !strings.Contains(out, "2 files, 6000 tokens") || err == nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A check that is interrupted is continued by the next one, which finds what the first one found, too.
func TestCheckContinues(t *testing.T) {
	e2e.Long(t)
	dir, cache := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "train.bin")
	e2e.Write(t, file, []byte{200, 0, 1, 0})
	const size = 256 << 20
	if err := os.Truncate(file, size); err != nil { // without the blocks of a disk
		t.Fatal(err)
	}
	// A token beyond the vocabulary is refused when the file is opened, but not by check.
	args := []string{"check", "train", "--data", dir, "--set", "batch.vocab_size=100", "--set", "batch.token_dtype=uint16", "--json"}
	e2e.Await(t, "a check that is interrupted", func() bool {
		first := e2e.Command(t, e2e.PlainBatchfs, args...)
		var stderr strings.Builder
		first.Env, first.Stderr = append(os.Environ(), "XDG_CACHE_HOME="+cache), &stderr
		e2e.NoError(t, first.Start())
		ended := make(chan struct{})
		go func() {
			first.Wait()
			close(ended)
		}()
		begun := func() bool {
			select {
			case <-ended:
				return true
			default:
			}
			states, _ := filepath.Glob(filepath.Join(cache, "batchfs", "check-*"))
			if len(states) == 0 {
				return false
			}
			info, err := os.Stat(states[0])
			return err == nil && info.Size() > 0
		}
		e2e.Await(t, "a part that was checked", begun)
		first.Process.Signal(syscall.SIGINT)
		<-ended
		return strings.Contains(stderr.String(), "interrupted")
	})
	r := check(t, cache, args[1:]...)
	if r.Resumed == 0 || r.Resumed >= size || r.Tokens != size/2 || fmt.Sprint(r.kinds()) != "[vocabulary zeros]" {
		t.Errorf("%+v", r)
	}
	if states, _ := os.ReadDir(filepath.Join(cache, "batchfs")); len(states) > 0 {
		t.Errorf("%v is left", states)
	}
}

// Info draws what a file holds, and index writes where its documents end.
func TestInfoAndIndex(t *testing.T) {
	file := filepath.Join(t.TempDir(), "train.bin")
	e2e.Write(t, file, []byte{1, 0, 2, 0, 9, 0, 3, 0, 9, 0, 4, 0})
	out := e2e.Run(t, e2e.Batchfs, "info", file, "--eot", "9")
	for _, want := range []string{"headerless, uint16, shape (6,), 12 bytes\n", "  6 tokens\n", "  3 documents\n", "  largest id 9\n", "2 to 3  ████"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nlacks %q", out, want)
		}
	}
	var said struct{ Files []struct{ Tokens int } }
	if err := json.Unmarshal([]byte(e2e.Run(t, e2e.Batchfs, "info", file, file, "--json")), &said); err != nil || len(said.Files) != 2 || said.Files[1].Tokens != 6 {
		t.Errorf("%v %+v", err, said)
	}
	if out := e2e.Run(t, e2e.Batchfs, "index", file, "--eot", "9"); out != file+".index: 3 documents\n" {
		t.Error(out)
	}
	if got, err := os.ReadFile(file + ".index"); err != nil || string(got) != "\x03\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("%v %x", err, got)
	}
	for _, args := range [][]string{{"index", file, "--eot", "2"}, {"index", file, "--eot", "7"}, {"index", file}, {"info", file + "?"}} {
		if _, ok := runBad(t, args...); ok {
			t.Errorf("%q succeeded", args)
		}
	}
}
