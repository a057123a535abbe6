package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/internal/failure"
	"batchfs/test/e2e"
)

// mount rejects what it cannot serve with a clear message, an exit status and a report, and mounts
// nothing.
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
	e2e.NoError(t, os.Symlink("nowhere", inDir("broken")))
	tokensFlags := func(file string, flags ...string) []string {
		return append([]string{"-c", "/dev/null", "--set", "splits.train.tokens=" + inDir(file)}, flags...)
	}
	for _, test := range []struct {
		name       string
		args       []string
		mountpoint string
		kind       *failure.Kind
		want       string
	}{
		{"missing", tokensFlags("none.bin"), "mnt", failure.Data, "none.bin: no such file"},
		{"another width", tokensFlags("wide.bin"), "mnt", failure.Data, `wide.bin: every second uint16 is at most 1, as in a file of uint32 tokens: set token_dtype = "uint32"`},
		{"a batch that cannot be read", tokensFlags("wide.bin", "--set", "batch.token_dtype=uint32", "--set", "batch.dtype=uint16", "--set", "batch.order=sequential",
			"--set", "batch.start=5"), "mnt", failure.Data, "splits.train: cannot read a batch: " + inDir("wide.bin") + ": token 65536 is 65536, which dtype uint16 cannot hold"},
		{"inside the mountpoint", tokensFlags("inside/train.bin"), "inside", failure.Mountpoint, "is not empty (it holds train.bin)"},
		{"mountpoint missing", tokensFlags("good.bin"), "none", failure.Mountpoint, "does not exist; create it with: mkdir -p"},
		{"mountpoint a broken link", tokensFlags("good.bin"), "broken", failure.Mountpoint, "/nowhere does not exist; create it with: mkdir -p"},
		{"mountpoint a file", tokensFlags("good.bin"), "file", failure.Mountpoint, "is a file; it must be an empty directory"},
		{"mountpoint not empty", tokensFlags("good.bin"), "full", failure.Mountpoint, "is not empty (it holds file)"},
		{"syntax", []string{"-c", inDir("broken.toml")}, "mnt", failure.Config, "broken.toml:2: "},
		{"no splits", []string{"-c", "/dev/null"}, "mnt", failure.Config, "no splits"},
		{"log inside the mountpoint", tokensFlags("good.bin", "--log", inDir("mnt/log")), "mnt", failure.Mountpoint, "--log: "},
		{"no such flag", tokensFlags("good.bin", "--colour"), "mnt", failure.Usage, "unknown flag: --colour"},
		{"flags that exclude each other", tokensFlags("good.bin", "--fd", "0", "--no-resend"), "mnt", failure.Usage, "fd no-resend"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, background := range [][]string{nil, {"-d", "--log", inDir("log")}} {
				// The shell opens descriptor 3 for the report.
				args := slices.Concat([]string{"sh", "-c", `exec "$0" "$@" 3>` + inDir("report"), e2e.Batchfs, "mount", "--status-fd=3"},
					background, test.args, []string{inDir(test.mountpoint)})
				_, stderr, err := e2e.Try(t, args...)
				if !e2e.HasStatus(err, test.kind) {
					t.Errorf("got %v, want exit status %d", err, test.kind.Status)
				}
				var report struct{ Kind, Message string }
				e2e.NoError(t, json.Unmarshal(e2e.Content(t, inDir("report")), &report))
				if report.Kind != test.kind.Name || !strings.HasSuffix(stderr, "batchfs: "+report.Message+"\n") {
					t.Errorf("reported %q, want kind %s and the message %q", report, test.kind.Name, stderr)
				}
				if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") > 3 {
					t.Errorf("got the message %q, want at most 3 lines with %q", stderr, test.want)
				}
				e2e.NotMounted(t, inDir(test.mountpoint))
			}
		})
	}

	m := e2e.Mount(t, tokensFlags("good.bin")...)
	_, stderr, err := e2e.Try(t, append([]string{e2e.Batchfs, "mount"}, append(tokensFlags("good.bin"), m.Dir)...)...)
	if !e2e.HasStatus(err, failure.Busy) || !strings.Contains(stderr, "already mounted") {
		t.Errorf("a second mount: %v, %s, want exit status %d", err, stderr, failure.Busy.Status)
	}
	e2e.CheckFails(t, "is inside the batchfs mount "+m.Dir, append([]string{e2e.Batchfs, "mount"}, append(tokensFlags("good.bin"), m.Path("train/batch"))...)...)
	for _, path := range []string{"/proc", inDir("mnt"), inDir("none"), inDir("no/such/dir")} {
		e2e.CheckFails(t, "no batchfs is mounted there", e2e.Batchfs, "unmount", path)
	}
	// block_size+1 tokens are enough.
	m = e2e.Mount(t, tokensFlags("short.bin", "--set", "batch.block_size=1999", "--set", "batch.batch_size=1")...)
	data := e2e.Content(t, inDir("short.bin"))
	e2e.Equal(t, "next", e2e.FileDigest(t, m, "train/next"), e2e.Digest(append(data[:3998:3998], data[2:]...)))
}
