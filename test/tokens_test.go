package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const passedThrough = "passed through: readers read the token file itself"

// readsTokens is what status.json says of who reads tokens.bin of a split.
func (m *mounted) readsTokens(t testing.TB, split string) string {
	t.Helper()
	var status struct {
		Splits map[string]struct {
			TokensBin string `json:"tokens_bin"`
		}
	}
	noError(t, json.Unmarshal([]byte(run(t, "cat", m.path("status.json"))), &status))
	return status.Splits[split].TokensBin
}

// needPassthrough skips a test on a machine whose kernel does not pass files through to this user, after m showed its train/tokens.bin.
func needPassthrough(t testing.TB, m *mounted) {
	t.Helper()
	run(t, "head", "-c", "1", m.path("train/tokens.bin"))
	switch how := m.readsTokens(t, "train"); {
	case how == passedThrough:
	case os.Geteuid() != 0:
		t.Skip("only root can have a file passed through")
	case strings.Contains(how, "CONFIG_FUSE_PASSTHROUGH"), strings.Contains(how, "CAP_SYS_ADMIN"):
		lack(t, "no passthrough: %s", how)
	default:
		t.Fatalf("train/tokens.bin is %s", how)
	}
}

// mountTokens mounts a file of the given content as train, and returns the file.
func mountTokens(t *testing.T, content []byte, args ...string) (m *mounted, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "train.bin")
	write(t, file, content)
	return mount(t, append([]string{"--data", filepath.Dir(file)}, args...)...), file
}

// tokens.bin has the tokens of all files of the split, one after the other, in every directory of the split, for every way to read
// a file. It is passed through where it is one file as it stands.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	contents := map[string][]byte{"a": versionOf(0, 700_001), "b": versionOf(1, 5_000), "c": versionOf(2, 900_003)}
	for name, content := range contents {
		write(t, at(name+".bin"), content)
	}
	noError(t, os.Symlink(at("a.bin"), at("link.bin")))
	const several = "read by batchfs: it is not one token file as it stands"
	config := at("config.toml")
	write(t, config, fmt.Appendf(nil, `
[batch]
batch_size = 4
block_size = 32
[splits.train]
tokens = %q
[splits.link]
tokens = %q
on_change = "follow"
dtype = "int64"
[splits.shards]
tokens = [%[1]q, %[3]q, %[4]q]
[splits.joined]
tokens = [%[1]q, %[3]q, %[4]q]
join = true
[splits.mixed]
[[splits.mixed.sources]]
tokens = %[4]q
weight = 1
[[splits.mixed.sources]]
tokens = [%[3]q, %[1]q]
weight = 2
`, at("a.bin"), at("link.bin"), at("b.bin"), at("c.bin")))
	m := mount(t, "-c", config)
	needPassthrough(t, m)
	for _, test := range []struct {
		split, files, how string
	}{
		{"train", "a", passedThrough},
		{"link", "a", passedThrough},
		{"shards", "abc", several},
		{"joined", "abc", several},
		{"mixed", "cba", several},
	} {
		var want []byte
		for _, name := range test.files {
			want = append(want, contents[string(name)]...)
		}
		if how := m.readsTokens(t, test.split); how != "not opened yet" && test.split != "train" {
			t.Errorf("before it is opened, %s/tokens.bin is %q", test.split, how)
		}
		for _, path := range []string{"/tokens.bin", "/rank=1,world=2,dtype=int32/tokens.bin"} {
			for method, got := range readEach(t, m.path(test.split+path), "readinto", "pread", "sendfile", "copyfile", "mmap_shared", "mmap_private") {
				if got != line(want) {
					t.Errorf("%s of %s%s: %s, want %s", method, test.split, path, got, line(want))
				}
			}
		}
		h := startHandles(t, m.dir)
		h.do("open %s/tokens.bin", test.split)
		for range 100 {
			off := rand.IntN(len(want) + 10)
			part := want[min(off, len(want)):]
			part = part[:min(len(part), rand.IntN(20_000))]
			if got := h.do("read 0 %d %d", off, len(part)); got != line(part) {
				t.Errorf("%d bytes of %s at %d: %s, want %s", len(part), test.split, off, got, line(part))
			}
		}
		if how := m.readsTokens(t, test.split); how != test.how {
			t.Errorf("%s/tokens.bin is %q, want %q", test.split, how, test.how)
		}
	}
	if out := run(t, plainBatchfs, "doctor", m.dir); !strings.Contains(out, "ok   tokens.bin: train/tokens.bin is "+passedThrough+"; ") ||
		!strings.Contains(out, "shards/tokens.bin is "+several) {
		t.Errorf("the doctor says\n%s", out)
	}
}

// A tokens.bin that is passed through is the token file's own pages, and is read while every process of the mount is stopped.
func TestTokensNeedNoProcess(t *testing.T) {
	content := versionOf(0, 5<<20)
	m, file := mountTokens(t, content)
	needPassthrough(t, m)
	if same := run(t, python, "clients/readers.py", "same_pages", m.path("train/tokens.bin"), file); same != "all\n" {
		t.Errorf("of the pages of tokens.bin, the token file has %s", same)
	}
	h := startHandles(t, m.dir)
	h.do("open train/tokens.bin")
	h.do("map 0 0 1")
	processes := append(m.awaitStandby(t), m.cmd.Process.Pid)
	slices.Reverse(processes) // the supervisor first, which would replace the others
	resume := func() {
		for _, pid := range processes {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	defer resume()
	late := time.AfterFunc(limit, func() {
		t.Error("reading waits for a process")
		resume()
	})
	defer late.Stop()
	for _, pid := range processes {
		noError(t, syscall.Kill(pid, syscall.SIGSTOP))
		await(t, "a process that is stopped", func() bool { return stopped(pid) })
	}
	for _, how := range []string{"read", "map"} {
		if got := h.do("%s 0 100 %d", how, len(content)-200); got != line(content[100:len(content)-100]) {
			t.Errorf("%s: %s", how, got)
		}
	}
}

// Whatever kills a worker, handles and mappings of tokens.bin read on, and it can be opened again, in each of its directories.
func TestTokensSurviveWorkers(t *testing.T) {
	content := versionOf(0, 1<<20)
	for _, test := range []struct {
		name   string
		shards int
		args   []string
		strike func(t testing.TB, m *mounted, worker int)
		kills  int
	}{
		{"passed through", 1, nil, kill, 20},
		{"read", 2, nil, stopAndKill, 20}, // kill -9 alone may fail a read that the worker answers
		{"no resend", 1, []string{"--no-resend"}, kill, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			long(t)
			dir := t.TempDir()
			for i := range test.shards {
				write(t, filepath.Join(dir, fmt.Sprintf("train_%d.bin", i)), content)
			}
			want := bytes.Repeat(content, test.shards)
			m := mount(t, append(test.args, "-c", "/dev/null", "--set", "splits.train.tokens="+dir+"/*.bin")...)
			if test.shards == 1 {
				needPassthrough(t, m)
			}
			h := startHandles(t, m.dir)
			opened := 0
			reads := func(n int) {
				t.Helper()
				for i := range opened {
					for _, how := range []string{"read", "map"} {
						off := rand.IntN(len(want) - 5000)
						if got := h.do("%s %d %d 5000", how, i, off); got != line(want[off:off+5000]) {
							t.Errorf("after %d kills, %s of handle %d at %d: %s", n, how, i, off, got)
						}
					}
				}
			}
			for n := range test.kills {
				path := fmt.Sprintf("train/seed=%d/tokens.bin", n%3)
				if test.args == nil {
					if said := h.do("open %s", path); said != "opened" {
						t.Fatalf("after %d kills: open: %s", n, said)
					}
					opened++
				} else { // the mount may be another one by now, and what was opened in the old one is lost
					h.do("close")
					await(t, "an open", func() bool { return h.do("open %s", path) == "opened" })
					opened = 1
				}
				reads(n)
				test.strike(t, m, m.awaitWorker(t))
				if test.args == nil {
					reads(n + 1)
					m.awaitStandby(t)
				} else {
					await(t, "another worker", func() bool { return strings.Count(m.out.String(), "another goes on") > n })
				}
			}
			run(t, "head", "-c", "1", m.path("train/tokens.bin"))
			if how := m.readsTokens(t, "train"); (how == passedThrough) != (test.shards == 1) {
				t.Errorf("tokens.bin is %q", how)
			}
		})
	}
}

// When a token file is replaced and that is followed, what was open shows the old file, and what is opened then the new one, whether
// the workers are killed or not. The old file's space is free once nobody has it open.
func TestTokensFollow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	free := func() uint64 { return 0 }
	if os.Geteuid() == 0 {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
			lack(t, "no tmpfs: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		free = func() uint64 {
			var st syscall.Statfs_t
			noError(t, syscall.Statfs(dir, &st))
			return st.Bfree
		}
	}
	file := filepath.Join(dir, "train.bin")
	contents := [][]byte{versionOf(0, 2<<20), versionOf(1, 2<<20), versionOf(2, 1<<20)}
	write(t, file, contents[0])
	m := mount(t, "--data", dir, "--set", "splits.train.on_change=follow")
	needPassthrough(t, m)
	before := free()
	h := startHandles(t, m.dir)
	var shown []int // by each handle
	for n := range 9 {
		for i, dir := range []string{"", "seed=1/"} {
			h.do("open train/%stokens.bin", dir)
			shown = append(shown, n%3)
			if n%2 == i {
				h.do("map %d 0 1", len(shown)-1)
			}
		}
		for i, version := range shown {
			want := contents[version]
			off := rand.IntN(len(want) - 5000)
			for _, how := range []string{"read", "map"} {
				if got := h.do("%s %d %d 5000", how, i, off); got != line(want[off:off+5000]) {
					t.Fatalf("after %d changes, %s of a handle of version %d: %s", n, how, version, got)
				}
			}
		}
		if n%2 == 0 && len(m.awaitStandby(t)) > 0 {
			kill(t, m, m.awaitWorker(t))
		}
		replaceFile(t, file, contents[(n+1)%3])
	}
	if out := run(t, "cat", m.path("train/tokens.bin")); out != string(contents[0]) {
		t.Error("tokens.bin is not the last file")
	}
	h.do("close")
	await(t, "the old files' space", func() bool { return free() == before })
}

// Of a token file that is overwritten in place, an open tokens.bin that is passed through shows the new bytes, as README says. It is not
// opened any more.
func TestTokensOverwritten(t *testing.T) {
	was, is := versionOf(0, 100_000), versionOf(1, 100_000)
	m, file := mountTokens(t, was)
	needPassthrough(t, m)
	h := startHandles(t, m.dir)
	h.do("open train/tokens.bin")
	shows := func(content []byte) {
		t.Helper()
		for _, how := range []string{"read", "map"} {
			if got := h.do("%s 0 0 %d", how, len(content)); got != line(content) {
				t.Errorf("%s: %s, want %s", how, got, line(content))
			}
		}
	}
	shows(was)
	write(t, file, is)
	shows(is)
	for _, path := range []string{"train/tokens.bin", "train/seed=1/tokens.bin"} {
		if said := h.do("open %s", path); said != "errno ESTALE" {
			t.Errorf("open %s: %s", path, said)
		}
	}
}

// A mount whose tokens.bin is open is busy; one that is ended all the same leaves its readers the token file.
func TestTokensUnmount(t *testing.T) {
	content := versionOf(0, 100_000)
	m, _ := mountTokens(t, content)
	needPassthrough(t, m)
	h := startHandles(t, m.dir)
	h.do("open train/tokens.bin")
	h.do("map 0 0 1")
	_, stderr, err := try(t, plainBatchfs, "unmount", m.dir)
	for _, want := range []string{"has open " + m.path("train/tokens.bin"), "has mapped " + m.path("train/tokens.bin")} {
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("unmount: %v %s, want %s", err, stderr, want)
		}
	}
	bound := filepath.Join(t.TempDir(), "data")
	noError(t, os.Mkdir(bound, 0o755))
	noError(t, syscall.Mount(m.path("train"), bound, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { syscall.Unmount(bound, syscall.MNT_DETACH) })
	if got := read(t, "mmap_shared", filepath.Join(bound, "tokens.bin"))[0]; got != line(content) {
		t.Errorf("where the split is mounted alone: %s", got)
	}
	noError(t, syscall.Unmount(bound, 0))
	run(t, plainBatchfs, "unmount", "--force", m.dir)
	if got := h.do("map 0 0 %d", len(content)); got != line(content) {
		t.Errorf("the mapping afterwards: %s", got)
	}
}

// How many times longer reading takes than from the token file itself: from tokens.bin that is passed through, and from one that
// batchfs has read, of two files, which the kernel has cached.
func BenchmarkTokens(b *testing.B) {
	dir := b.TempDir()
	content := versionOf(0, 128<<20)
	for name, part := range map[string][]byte{"whole": content, "half_1": content[:len(content)/2], "half_2": content[len(content)/2:]} {
		write(b, filepath.Join(dir, name+".bin"), part)
	}
	m := mount(b, "-c", "/dev/null", "--set", "splits.train.tokens="+dir+"/whole.bin", "--set", "splits.read.tokens="+dir+"/half_*.bin")
	needPassthrough(b, m)
	for b.Loop() {
		for _, took := range read(b, "race", filepath.Join(dir, "whole.bin"), m.path("train/tokens.bin"), m.path("read/tokens.bin")) {
			var way string
			var file, passed, cached float64
			if !scan(took, "%s %g %g %g", &way, &file, &passed, &cached) {
				b.Fatal(took)
			}
			b.ReportMetric(passed/file, way+":passed/file")
			b.ReportMetric(cached/file, way+":read/file")
		}
	}
}
