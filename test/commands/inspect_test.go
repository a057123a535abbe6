package commands

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// Python finds the files that JSON names, even if their names are not UTF-8. unmount escapes
// control sequences in the name of a process.
func TestOddNames(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "\x1b[2J\xff\xc3")
	for _, name := range []string{"train.bin", "val.bin"} {
		e2e.WriteTokens(t, filepath.Join(dir, name), 60_000, 2)
	}
	config := e2e.Write(t, filepath.Join(filepath.Dir(dir), "config.toml"), []byte("[splits.train]\ntokens = '*/train.bin'\n[splits.val]\ntokens = '*/val.bin'\n"))
	m := e2e.Mount(t, "-c", config)
	e2e.Run(t, e2e.Python, "-c", `
import json, os, sys
for path in sys.argv[1:]:
    info = json.load(open(path))
    for name in info.get("files", []) + [row["file"] for row in info.get("rows", [])]:
        assert os.path.getsize(os.fsencode(name)) == 120000`, m.Path("train/info.json"), m.Path("train/batch/0.json"))
	reader := e2e.StartClient(t, exec.Command(e2e.Python, "-c", `
import sys
open("/proc/self/comm", "w").write("\x1b]0;x\x07\nprocess 1")
f = open(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()`, m.Path("train/info.json")))
	reader.AwaitReady(t)
	_, users, err := e2e.Try(t, e2e.PlainBatchfs, "unmount", m.Dir)
	if err == nil || !strings.Contains(users, `(\x1b]0;x\a\nprocess`) || strings.ContainsAny(users, "\x1b\x07") {
		t.Errorf("unmount: error %v, standard error %q, want the escaped name of the process", err, users)
	}
}

// Given the identity of a sequence, cat writes its batches, and rejects any other sequence without
// writing a byte.
func TestCatOfAnIdentity(t *testing.T) {
	t.Parallel()
	config, batches := e2e.SmallConfig(t, 1)
	file := filepath.Join(filepath.Dir(config), "train.bin")
	m := e2e.Mount(t, "-c", config)
	identity := m.Info(t, "train").Identity
	cat := func(split, format string) (out, stderr string, err error) {
		t.Helper()
		return e2e.Try(t, e2e.PlainBatchfs, "cat", split, "-c", config, "--identity", identity, "--format", format)
	}
	rejects := func(split string) {
		t.Helper()
		for _, format := range []string{"raw", "npy", "safetensors", "info"} {
			out, stderr, err := cat(split, format)
			if err == nil || out != "" || !strings.Contains(stderr, "--identity is "+identity) || !strings.Contains(stderr, split+" has the identity ") {
				t.Errorf("%s --format %s: error %v, standard error %q and %d bytes, want an error that names both identities", split, format, err, stderr, len(out))
			}
		}
	}
	// steps does not change the identity.
	out, stderr, err := cat("train/steps=7", "raw")
	if e2e.Digest([]byte(out)) != batches[0] {
		t.Errorf("cat of the same sequence: error %v, %s, want batch 0", err, stderr)
	}
	e2e.CheckFails(t, "train/seed=3 has the identity ", e2e.PlainBatchfs, "cat", m.Path("train/seed=3"), "--identity", identity)
	rejects("train/order=shuffle")
	rejects("val")
	e2e.ReplaceFile(t, file, e2e.StormTokens(1)[:e2e.Must(os.Stat(file))(t).Size()])
	rejects("train")
}
