package commands

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// mount rejects what it cannot serve with a clear message, and mounts nothing.
func TestRejected(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	inDir := func(name string) string { return filepath.Join(dir, name) }
	e2e.WriteTokens(t, inDir("good.bin"), 60_000, 2)
	e2e.WriteTokens(t, inDir("short.bin"), 2000, 2)
	e2e.WriteTokens(t, inDir("wide.bin"), 70_000, 4)
	e2e.Write(t, inDir("full/file"), "")
	e2e.Write(t, inDir("file"), "")
	e2e.Write(t, inDir("broken.toml"), []byte("[batch]\nseed = seven\n"))
	e2e.WriteTokens(t, inDir("inside/train.bin"), 60_000, 2)
	e2e.NoError(t, os.Mkdir(inDir("mnt"), 0o755))
	tokensFlags := func(file string, flags ...string) []string {
		return append([]string{"-c", "/dev/null", "--set", "splits.train.tokens=" + inDir(file)}, flags...)
	}
	for _, test := range []struct {
		name       string
		args       []string
		mountpoint string
		want       string
	}{
		{"missing", tokensFlags("none.bin"), "mnt", "none.bin: no such file"},
		{"another width", tokensFlags("wide.bin"), "mnt", `wide.bin: every second uint16 is at most 1, as in a file of uint32 tokens: set token_dtype = "uint32"`},
		{"a batch that cannot be read", tokensFlags("wide.bin", "--set", "batch.token_dtype=uint32", "--set", "batch.dtype=uint16", "--set", "batch.order=sequential",
			"--set", "batch.start=5"), "mnt", "splits.train: cannot read a batch: " + inDir("wide.bin") + ": token 65536 is 65536, which dtype uint16 cannot hold"},
		{"inside the mountpoint", tokensFlags("inside/train.bin"), "inside", "is not empty (it holds train.bin)"},
		{"mountpoint missing", tokensFlags("good.bin"), "none", "does not exist; create it with: mkdir -p"},
		{"mountpoint a file", tokensFlags("good.bin"), "file", "is a file; it must be an empty directory"},
		{"mountpoint not empty", tokensFlags("good.bin"), "full", "is not empty (it holds file)"},
		{"syntax", []string{"-c", inDir("broken.toml")}, "mnt", "broken.toml:2: "},
		{"no splits", []string{"-c", "/dev/null"}, "mnt", "no splits"},
		{"log inside the mountpoint", tokensFlags("good.bin", "--log", inDir("mnt/log")), "mnt", "--log: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, background := range [][]string{nil, {"-d", "--log", inDir("log")}} {
				args := slices.Concat([]string{e2e.Batchfs, "mount"}, background, test.args, []string{inDir(test.mountpoint)})
				_, stderr, err := e2e.Try(t, args...)
				if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
					t.Errorf("got %v, want exit status 1", err)
				}
				if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") > 3 {
					t.Errorf("got the message %q, want at most 3 lines with %q", stderr, test.want)
				}
				e2e.NotMounted(t, inDir(test.mountpoint))
			}
		})
	}

	m := e2e.Mount(t, tokensFlags("good.bin")...)
	e2e.CheckFails(t, "already mounted", append([]string{e2e.Batchfs, "mount"}, append(tokensFlags("good.bin"), m.Dir)...)...)
	for _, path := range []string{"/proc", inDir("mnt"), inDir("none"), inDir("no/such/dir")} {
		e2e.CheckFails(t, "no batchfs is mounted there", e2e.Batchfs, "unmount", path)
	}
	// block_size+1 tokens are enough.
	m = e2e.Mount(t, tokensFlags("short.bin", "--set", "batch.block_size=1999", "--set", "batch.batch_size=1")...)
	data := e2e.Content(t, inDir("short.bin"))
	e2e.Equal(t, "next", e2e.FileDigest(t, m, "train/next"), e2e.Digest(append(data[:3998:3998], data[2:]...)))
}
