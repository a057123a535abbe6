package soak

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// However often it is killed, prepare writes the files of an uninterrupted run.
func TestPrepareKilled(t *testing.T) {
	e2e.SkipIfShort(t)
	dir := t.TempDir()
	texts, want, out := filepath.Join(dir, "a.jsonl.zst"), filepath.Join(dir, "want"), filepath.Join(dir, "out")
	size := e2e.NormalOrSoak(8<<20, 400<<20)
	e2e.WriteCompressedLines(t, texts, size)
	args := []string{"prepare", texts, "--by", "byte", "--shard-tokens", fmt.Sprint(size / 20), "--val", "0.01", "--out"}
	began := time.Now()
	e2e.RunJob(t, append([]string{e2e.Batchfs}, append(args, want)...)...)
	took := time.Since(began)

	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(out, name))
		return err == nil
	}
	completed := 0
	for killed := 0; killed < 20 || completed == 0; {
		cmd := e2e.Job(t, e2e.Batchfs, append(args, out)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		e2e.NoError(t, cmd.Start())
		kill := time.AfterFunc(rand.N(took), func() { cmd.Process.Kill() })
		if killed >= 20 {
			kill.Stop()
		}
		err := cmd.Wait()
		kill.Stop()
		switch {
		case err == nil:
		case cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
			t.Fatalf("prepare failed, and not because it was killed: %v: %s", err, &stderr)
		default:
			killed++
		}
		// The files are complete, even if prepare was killed at its very end.
		if exists("vocab.json") && !exists(".prepare/.state.json") {
			os.Remove(filepath.Join(out, ".prepare"))
			if e2e.HashFiles(t, out) != e2e.HashFiles(t, want) {
				t.Fatal("the files differ from those of an uninterrupted run")
			}
			e2e.NoError(t, os.RemoveAll(out))
			completed++
		}
	}
	t.Logf("completed %d times", completed)
}

// prepare prints its first line soon, however much text there is, in a terminal and in a pipe.
func TestPrepareFirstLine(t *testing.T) {
	e2e.SkipIfShort(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	e2e.NoError(t, os.WriteFile(text, nil, 0o666))
	e2e.NoError(t, os.Truncate(text, 8<<30)) // a hole, which takes no space
	const first = `import os, pty, subprocess, sys, time
reading, writing = pty.openpty() if sys.argv[1] == "terminal" else os.pipe()
began, line = time.monotonic(), b""
program = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
os.close(writing) # so that the read fails or is empty if the program ends
while b"\n" not in line:
    more = os.read(reading, 4096)
    assert more, f"it ended after {line}"
    line += more
print(time.monotonic() - began)
program.kill()
assert line.startswith(b"tokens of "), line`
	for _, by := range []string{"char", "gpt2", "o200k"} {
		for _, where := range []string{"terminal", "pipe"} {
			out := e2e.Run(t, e2e.Python, "-c", first, where, e2e.Batchfs, "prepare", text, "--as", "text", "--by", by, "--out", filepath.Join(dir, by+where))
			seconds := e2e.Must(strconv.ParseFloat(strings.TrimSpace(out), 64))(t)
			e2e.CheckDuration(t, "the first line of --by "+by+" in a "+where, time.Duration(seconds*float64(time.Second)), 2*time.Second)
		}
	}
}

// prepare needs the same memory for any amount of text.
func TestPrepareMemory(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	dir := t.TempDir()
	texts := filepath.Join(dir, "a.jsonl.zst")
	e2e.WriteCompressedLines(t, texts, 2<<30)
	// ru_maxrss includes the memory of the parent, which the child has before exec. Python's is
	// small.
	const most = `import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)`
	out := e2e.RunJob(t, e2e.Python, "-c", most, e2e.PlainBatchfs, "prepare", texts, "--by", "byte", "--out", filepath.Join(dir, "out"))
	if mib := e2e.Must(strconv.Atoi(strings.TrimSpace(out)))(t); mib > 500 {
		t.Errorf("prepare had %d MiB resident, want at most 500", mib)
	}
}

// Very many small files become splits in which each file is a document.
func TestPrepareManyFiles(t *testing.T) {
	e2e.SkipIfShort(t)
	n := e2e.NormalOrSoak(3000, 100_000)
	dir := t.TempDir()
	for i := range n {
		e2e.Write(t, filepath.Join(dir, "texts", fmt.Sprint(i/1000), fmt.Sprint(i)), fmt.Sprintf("text %d\n", i))
	}
	e2e.RunJob(t, e2e.Batchfs, "prepare", filepath.Join(dir, "texts"), "--by", "byte", "--out", filepath.Join(dir, "out"))
	type manifest struct {
		Splits map[string]struct{ Documents int }
	}
	m := e2e.JSON[manifest](t, "cat", filepath.Join(dir, "out", "vocab.json"))
	e2e.Equal(t, "documents", m.Splits["train"].Documents+m.Splits["val"].Documents, n)
}
