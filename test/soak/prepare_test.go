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

// Killed again and again at any moment, prepare makes the files that it makes at once.
func TestPrepareKilled(t *testing.T) {
	e2e.Long(t)
	dir := t.TempDir()
	texts, want, out := filepath.Join(dir, "a.jsonl.zst"), filepath.Join(dir, "want"), filepath.Join(dir, "out")
	size := 8 << 20
	if e2e.InSoak() {
		size = 400 << 20
	}
	e2e.CompressedLines(t, texts, size)
	args := []string{"prepare", texts, "--by", "byte", "--shard-tokens", fmt.Sprint(size / 20), "--val", "0.01", "--out"}
	began := time.Now()
	e2e.Run(t, append([]string{e2e.Batchfs}, append(args, want)...)...)
	took := time.Since(began)

	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(out, name))
		return err == nil
	}
	completed := 0
	for killed := 0; killed < 20 || completed == 0; {
		cmd := e2e.Command(t, e2e.Batchfs, append(args, out)...)
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
			t.Fatalf("%v: %s", err, &stderr)
		default:
			killed++
		}
		if exists("vocab.json") && !exists(".prepare/.state.json") { // complete, though it may have been killed at its very end
			os.Remove(filepath.Join(out, ".prepare"))
			if e2e.Contents(t, out) != e2e.Contents(t, want) {
				t.Fatal("other files than those of a run that was not killed")
			}
			e2e.NoError(t, os.RemoveAll(out))
			completed++
		}
	}
	t.Logf("completed %d times", completed)
}

// However much text there is, prepare prints its first line soon, on a terminal and elsewhere.
func TestPrepareFirstLine(t *testing.T) {
	e2e.Long(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	e2e.NoError(t, os.WriteFile(text, nil, 0o666))
	e2e.NoError(t, os.Truncate(text, 8<<30)) // zeros, which take no room
	const first = `import os, pty, subprocess, sys, time
reading, writing = pty.openpty() if sys.argv[1] == "terminal" else os.pipe()
began, line = time.monotonic(), b""
program = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
while b"\n" not in line:
    line += os.read(reading, 4096)
print(time.monotonic() - began)
program.kill()
assert line.startswith(b"tokens of "), line`
	for _, by := range []string{"char", "gpt2", "o200k"} {
		for _, where := range []string{"terminal", "pipe"} {
			out := e2e.Run(t, e2e.Python, "-c", first, where, e2e.Batchfs, "prepare", text, "--by", by, "--out", filepath.Join(dir, by+where))
			seconds := e2e.Must(strconv.ParseFloat(strings.TrimSpace(out), 64))(t)
			e2e.InTime(t, "the first line of --by "+by+" in a "+where, time.Duration(seconds*float64(time.Second)), 2*time.Second)
		}
	}
}

// However much text there is, prepare needs the same memory.
func TestPrepareMemory(t *testing.T) {
	e2e.ForSoak(t)
	dir := t.TempDir()
	texts := filepath.Join(dir, "a.jsonl.zst")
	e2e.CompressedLines(t, texts, 2<<30)
	// The maximum that wait(2) tells begins with the memory of the parent, which is small in Python.
	const most = `import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)`
	out := e2e.Run(t, e2e.Python, "-c", most, e2e.PlainBatchfs, "prepare", texts, "--by", "byte", "--out", filepath.Join(dir, "out"))
	if mib := e2e.Must(strconv.Atoi(strings.TrimSpace(out)))(t); mib > 500 {
		t.Errorf("%d MiB resident", mib)
	}
}

// Small files without number are a split, each of them a document.
func TestPrepareManyFiles(t *testing.T) {
	e2e.Long(t)
	n := 3000
	if e2e.InSoak() {
		n = 100_000
	}
	dir := t.TempDir()
	for i := range n {
		e2e.Write(t, filepath.Join(dir, "texts", fmt.Sprint(i/1000), fmt.Sprint(i)), fmt.Sprintf("text %d\n", i))
	}
	e2e.Run(t, e2e.Batchfs, "prepare", filepath.Join(dir, "texts"), "--by", "byte", "--out", filepath.Join(dir, "out"))
	type manifest struct {
		Splits map[string]struct{ Documents int }
	}
	m := e2e.JSON[manifest](t, "cat", filepath.Join(dir, "out", "vocab.json"))
	e2e.Equal(t, "documents", m.Splits["train"].Documents+m.Splits["val"].Documents, n)
}
