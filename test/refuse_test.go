package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What cannot be served is refused with a sentence of its own, before anything is mounted.
func TestRefused(t *testing.T) {
	needFUSE(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	tokens(t, at("good.bin"), 60_000, 2)
	tokens(t, at("short.bin"), 2000, 2)
	write(t, at("empty.bin"), nil)
	tokens(t, at("wide.bin"), 70_000, 4)
	write(t, at("array.npy"), append([]byte("\x93NUMPY\x01\x00"), make([]byte, 5000)...))
	write(t, at("old/train_old.bin"), make([]byte, 5000))
	write(t, at("odd.bin"), make([]byte, 4097))
	write(t, at("full/file"), nil)
	write(t, at("file"), nil)
	write(t, at("broken.toml"), []byte("[batch]\nseed = seven\n"))
	write(t, at("typo.toml"), []byte("[splits.train]\ntokens = \"good.bin\"\n\nordr = \"random\"\n"))
	tokens(t, at("inside/train.bin"), 60_000, 2)
	for _, d := range []string{"mnt", "empty"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	with := func(file string, more ...string) []string {
		return append([]string{"-c", "/dev/null", "--set", "splits.train.tokens=" + at(file)}, more...)
	}
	tests := []struct {
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
		{"strays", []string{"--data", at("old")}, "mnt", `["train_old.bin"]: --data takes train.bin, or else train with a number`},
		{"no match", with("*.tokens"), "mnt", "which matches none"},
		{"inside the mountpoint", with("inside/train.bin"), "inside", "lies in the mountpoint"},
		{"mountpoint missing", with("good.bin"), "none", "does not exist; make it with: mkdir -p"},
		{"mountpoint in no directory", with("good.bin"), "no/such/dir", "no/such/dir does not exist; make it with: mkdir -p "},
		{"mountpoint a file", with("good.bin"), "file", "is a file; it must be an empty directory"},
		{"mountpoint not empty", with("good.bin"), "full", "is not empty (it holds file)"},
		{"no configuration", []string{"-c", at("none.toml")}, "mnt", "none.toml: no such file"},
		{"syntax", []string{"-c", at("broken.toml")}, "mnt", "broken.toml:2: "},
		{"unknown key", []string{"-c", at("typo.toml")}, "mnt", "typo.toml:4: splits.train.ordr: unknown key"},
		{"bad value", with("good.bin", "--set", "batch.order=shufle"), "mnt", `--set batch.order: must be random, shuffle, sequential, torch or torch-2.6 (got "shufle")`},
		{"no splits", []string{"-c", "/dev/null"}, "mnt", "no splits"},
		{"no data", []string{"--data", at("empty")}, "mnt", "has neither train*.bin nor val*.bin"},
		{"data missing", []string{"--data", at("none")}, "mnt", "no such file"},
		{"log inside the mountpoint", with("good.bin", "--log", at("mnt/log")), "mnt", "--log: "},
		{"unknown flag", []string{"--frobnicate"}, "mnt", "unknown flag: --frobnicate"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, background := range [][]string{nil, {"-d", "--log", at("log")}} {
				args := slices.Concat([]string{batchfs, "mount"}, background, test.args, []string{at(test.at)})
				_, stderr, err := try(t, args...)
				if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
					t.Errorf("exit: %v, want status 1", err)
				}
				if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") > 3 {
					t.Errorf("%q does not say %q", stderr, test.want)
				}
				if isMounted(t, at(test.at)) {
					t.Error("mounted")
				}
			}
		})
	}

	t.Run("already mounted", func(t *testing.T) {
		m := mount(t, with("good.bin")...)
		_, stderr, err := try(t, append([]string{batchfs, "mount"}, append(with("good.bin"), m.dir)...)...)
		if err == nil || !strings.Contains(stderr, "already mounted") {
			t.Errorf("%v %s", err, stderr)
		}
	})
	t.Run("unmount of something else", func(t *testing.T) {
		for _, path := range []string{"/proc", at("mnt"), at("none"), at("no/such/dir")} {
			_, stderr, err := try(t, batchfs, "unmount", path)
			if err == nil || !strings.Contains(stderr, "no batchfs is mounted there") {
				t.Errorf("%s: %v %s", path, err, stderr)
			}
		}
	})
	t.Run("T+1 tokens", func(t *testing.T) {
		m := mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+tokens(t, at("just.bin"), 2001, 2), "--set", "batch.block_size=2000", "--set", "batch.batch_size=1")
		got := read(t, "read", m.path("train/next"))[0]
		data, err := os.ReadFile(at("just.bin"))
		if err != nil {
			t.Fatal(err)
		}
		if want := line(append(data[:4000:4000], data[2:]...)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A token file that changes under readers gives them ESTALE, whatever the access, and the log and status.json say how;
// the other split is not disturbed, and the file is served again when it is back.
func TestChangedTokens(t *testing.T) {
	for _, access := range []string{"remap", "advise", "pread", "map"} {
		t.Run(access, func(t *testing.T) {
			dir := t.TempDir()
			file, kept := tokens(t, filepath.Join(dir, "train.bin"), 60_000, 2), filepath.Join(dir, "kept.bin")
			tokens(t, filepath.Join(dir, "val.bin"), 60_000, 2)
			m := mount(t, "--data", dir, "--set", "memory.access="+access)
			before := read(t, "read", m.path("train/next"))[0]

			if err := os.Rename(file, kept); err != nil {
				t.Fatal(err)
			}
			_, stderr, err := try(t, "cat", m.path("train/next"))
			if err == nil || !strings.Contains(stderr, "Input/output error") {
				t.Errorf("reading without the file: %v %s", err, stderr)
			}
			tokens(t, file, 50_000, 2)
			_, stderr, err = try(t, "cat", m.path("train/next"))
			if err == nil || !strings.Contains(stderr, "Stale file handle") {
				t.Errorf("reading from another file: %v %s", err, stderr)
			}
			for where, text := range map[string]string{"log": m.out.String(), "status.json": run(t, "cat", m.path("status.json"))} {
				if !strings.Contains(text, "train.bin has changed since it was opened: 100000 bytes, was 120000") {
					t.Errorf("%s does not say what happened:\n%s", where, text)
				}
			}
			if got := read(t, "read", m.path("val/batch/0"))[0]; !strings.HasPrefix(got, fmt.Sprint(2*12*1024*2)) {
				t.Errorf("val: %s", got)
			}
			if err := os.Rename(kept, file); err != nil {
				t.Fatal(err)
			}
			if got := read(t, "read", m.path("train/batch/0"))[0]; got != before {
				t.Errorf("with the file back, batch 0 is %s, was %s", got, before)
			}
		})
	}
}

// A token that the dtype cannot hold is an error, never another token.
func TestTokenTooLarge(t *testing.T) {
	file := tokens(t, filepath.Join(t.TempDir(), "train.bin"), 70_000, 4)
	args := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + file, "--set", "batch.token_dtype=uint32", "--set", "batch.dtype=uint16", "--set", "batch.order=sequential"}
	m := mount(t, args...)
	read(t, "read", m.path("train/batch/4")) // tokens up to 61440
	_, stderr, err := try(t, "cat", m.path("train/batch/5"))
	if err == nil || !strings.Contains(stderr, "Input/output error") || !strings.Contains(m.out.String(), "token 65536 is 65536, which dtype uint16 cannot hold") {
		t.Errorf("%v %s %s", err, stderr, m.out)
	}
	m = mount(t, append(args, "--set", "batch.dtype=native")...)
	read(t, "read", m.path("train/batch/5"))
}
