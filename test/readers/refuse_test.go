package readers

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// What cannot be served is refused with a sentence of its own, before anything is mounted.
func TestRefused(t *testing.T) {
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	e2e.Tokens(t, at("good.bin"), 60_000, 2)
	e2e.Tokens(t, at("short.bin"), 2000, 2)
	e2e.Write(t, at("empty.bin"), "")
	e2e.Tokens(t, at("wide.bin"), 70_000, 4)
	e2e.Write(t, at("array.npy"), append([]byte("\x93NUMPY\x01\x00"), make([]byte, 5000)...))
	e2e.Write(t, at("odd.bin"), make([]byte, 4097))
	e2e.Write(t, at("full/file"), "")
	e2e.Write(t, at("file"), "")
	e2e.Write(t, at("broken.toml"), []byte("[batch]\nseed = seven\n"))
	e2e.Tokens(t, at("inside/train.bin"), 60_000, 2)
	for _, d := range []string{"mnt", "empty"} {
		e2e.NoError(t, os.Mkdir(at(d), 0o755))
	}
	with := func(file string, more ...string) []string {
		return append([]string{"-c", "/dev/null", "--set", "splits.train.tokens=" + at(file)}, more...)
	}
	for _, test := range []struct {
		name string
		args []string
		at   string
		want string
	}{
		{"T tokens", with("short.bin", "--set", "batch.block_size=2000"), "mnt", "2000 tokens, need at least block_size+1 = 2001"},
		{"odd size", with("odd.bin"), "mnt", "odd.bin: 4097 bytes are not a whole number of tokens of 2 bytes"},
		{"empty", with("empty.bin"), "mnt", "empty.bin is empty"},
		{"missing", with("none.bin"), "mnt", "none.bin: no such file"},
		{"directory", with("full"), "mnt", "full is a directory"},
		{"another width", with("wide.bin"), "mnt", `wide.bin: every second uint16 is at most 1, as in a file of uint32 tokens: say token_dtype = "uint32"`},
		{"another format", with("array.npy", "--set", "batch.token_dtype=uint16"), "mnt", "array.npy: its .npy header is wrong"},
		{"another vocabulary", with("good.bin", "--set", "batch.vocab_size=50257"), "mnt", "good.bin: token 50257 is 50257, and tokens must be below vocab_size, which is 50257"},
		{"a batch that cannot be read", with("wide.bin", "--set", "batch.token_dtype=uint32", "--set", "batch.dtype=uint16", "--set", "batch.order=sequential",
			"--set", "batch.start=5"), "mnt", "splits.train: a batch could not be read: " + at("wide.bin") + ": token 65536 is 65536, which dtype uint16 cannot hold"},
		{"no match", with("*.tokens"), "mnt", "which matches none"},
		{"inside the mountpoint", with("inside/train.bin"), "inside", "is not empty (it holds train.bin)"},
		{"mountpoint missing", with("good.bin"), "none", "does not exist; make it with: mkdir -p"},
		{"mountpoint a file", with("good.bin"), "file", "is a file; it must be an empty directory"},
		{"mountpoint not empty", with("good.bin"), "full", "is not empty (it holds file)"},
		{"syntax", []string{"-c", at("broken.toml")}, "mnt", "broken.toml:2: "},
		{"no splits", []string{"-c", "/dev/null"}, "mnt", "no splits"},
		{"no data", []string{"--data", at("empty")}, "mnt", "has neither train*.bin nor val*.bin"},
		{"log inside the mountpoint", with("good.bin", "--log", at("mnt/log")), "mnt", "--log: "},
		{"unknown flag", []string{"--frobnicate"}, "mnt", "unknown flag: --frobnicate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, background := range [][]string{nil, {"-d", "--log", at("log")}} {
				args := slices.Concat([]string{e2e.Batchfs, "mount"}, background, test.args, []string{at(test.at)})
				_, stderr, err := e2e.Try(t, args...)
				if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
					t.Errorf("exit: %v, want status 1", err)
				}
				if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") > 3 {
					t.Errorf("%q does not say %q", stderr, test.want)
				}
				e2e.NotMounted(t, at(test.at))
			}
		})
	}

	m := e2e.Mount(t, with("good.bin")...)
	e2e.Fails(t, "already mounted", append([]string{e2e.Batchfs, "mount"}, append(with("good.bin"), m.Dir)...)...)
	for _, path := range []string{"/proc", at("mnt"), at("none"), at("no/such/dir")} {
		e2e.Fails(t, "no batchfs is mounted there", e2e.Batchfs, "unmount", path)
	}
	// T+1 tokens are enough.
	m = e2e.Mount(t, with("short.bin", "--set", "batch.block_size=1999", "--set", "batch.batch_size=1")...)
	data := e2e.Content(t, at("short.bin"))
	e2e.Equal(t, "next", e2e.Take(t, m, "train/next"), e2e.Line(append(data[:3998:3998], data[2:]...)))
}
