package commands

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// On a full disk, prepare leaves no token file. It resumes once there is room.
func TestPrepareDiskFull(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root may mount a tmpfs")
	dir := t.TempDir()
	texts, want, out := filepath.Join(dir, "a.jsonl.zst"), filepath.Join(dir, "want"), filepath.Join(dir, "out")
	e2e.WriteCompressedLines(t, texts, 4<<20)
	args := []string{e2e.Batchfs, "prepare", texts, "--by", "byte", "--shard-tokens", "200000", "--out"}
	e2e.Run(t, append(args, want)...)
	e2e.NoError(t, os.Mkdir(out, 0o755))
	if err := syscall.Mount("tmpfs", out, "tmpfs", 0, "size=3m"); err != nil {
		e2e.SkipOrFail(t, "no tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(out, syscall.MNT_DETACH) })
	e2e.CheckFails(t, "no space left on device; run the same command again to continue", append(args, out)...)
	if entries, _ := os.ReadDir(out); len(entries) != 1 || entries[0].Name() != ".prepare" {
		t.Errorf("prepare left %v, want only .prepare", entries)
	}
	e2e.NoError(t, syscall.Mount("tmpfs", out, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	e2e.Run(t, append(args, out)...)
	e2e.Equal(t, "the files, compared with those of a run on a disk with room", e2e.HashFiles(t, out), e2e.HashFiles(t, want))
}

// prepare works in a directory of its own, and removes only what it created.
func TestPrepareWorkplace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(workplace, victim string) error
		want string // empty if prepare succeeds
	}{
		"link":          {func(w, victim string) error { return os.Symlink(victim, w) }, "is not a directory"},
		"relative link": {func(w, victim string) error { return os.Symlink(filepath.Base(victim), w) }, "is not a directory"},
		"file":          {func(w, _ string) error { return os.WriteFile(w, nil, 0o644) }, "is not a directory"},
		"another user":  {func(w, _ string) error { return cmp.Or(os.Mkdir(w, 0o755), os.Chown(w, 65534, 65534)) }, "belongs to user 65534"},
		"all write":     {func(w, _ string) error { return cmp.Or(os.Mkdir(w, 0o755), os.Chmod(w, 0o777)) }, "others may write to"},
		"other files": {func(w, _ string) error {
			return cmp.Or(os.MkdirAll(filepath.Join(w, "dir"), 0o755), os.WriteFile(filepath.Join(w, "notes"), nil, 0o644))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user" && os.Geteuid() != 0 {
				t.Skip("only root can make a directory of another user")
			}
			dir := t.TempDir()
			out, text := filepath.Join(dir, "out"), filepath.Join(dir, "text")
			workplace, victim := filepath.Join(out, ".prepare"), filepath.Join(out, "victim")
			e2e.NoError(t, os.MkdirAll(victim, 0o755))
			e2e.Write(t, filepath.Join(victim, "train.bin"), []byte("mine"))
			e2e.Write(t, text, []byte("text"))
			e2e.NoError(t, c.make(workplace, victim))
			_, stderr, err := e2e.Try(t, e2e.Batchfs, "prepare", text, "--by", "byte", "--val", "0", "--out", out)
			if c.want == "" {
				e2e.NoError(t, err)
				for _, name := range []string{".prepare/notes", ".prepare/dir", "train.bin", "vocab.json"} {
					e2e.Must(os.Lstat(filepath.Join(out, name)))(t)
				}
			} else if want := "batchfs: " + workplace + ": " + c.want; err == nil || !strings.HasPrefix(stderr, want) {
				t.Errorf("error %v, standard error %q, want %q", err, stderr, want)
			}
			if left, _ := os.ReadDir(out); c.want != "" && len(left) != 2 {
				t.Errorf("prepare left %v, want what was there before", left)
			}
			e2e.Equal(t, "the victim's file", string(e2e.Content(t, filepath.Join(victim, "train.bin"))), "mine")
		})
	}
}

// prepare never resumes a run that read a pipe, not even one that failed only when it published its
// files, because a pipe may supply other text the next time.
func TestPrepareReadOnce(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root may mount")
	dir := t.TempDir()
	out, fifo := filepath.Join(dir, "out"), filepath.Join(dir, "fifo")
	busy := filepath.Join(out, "train.bin")
	e2e.NoError(t, os.Mkdir(out, 0o755))
	e2e.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for input, script := range map[string]string{"-": `printf "$0" | exec "$@"`, fifo: `printf "$0" >"$3" & exec "$@"`} {
		prepare := []string{e2e.Batchfs, "prepare", input, "--by", "byte", "--val", "0", "--force", "--out", out}
		e2e.Write(t, busy, "")
		if err := syscall.Mount("/dev/null", busy, "", syscall.MS_BIND, ""); err != nil {
			e2e.SkipOrFail(t, "no bind mount: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(busy, syscall.MNT_DETACH) })
		_, stderr, err := e2e.Try(t, append([]string{"sh", "-c", script, "first"}, prepare...)...)
		if err == nil || !strings.Contains(stderr, "device or resource busy; the complete files are in ") {
			t.Errorf("prepare %s with a mount on train.bin: error %v, %q, want a busy device", input, err, stderr)
		}
		e2e.NoError(t, syscall.Unmount(busy, 0))
		e2e.Run(t, append([]string{"sh", "-c", script, "second"}, prepare...)...)
		e2e.Equal(t, input+": the tokens", string(e2e.Content(t, busy)), "s\x00e\x00c\x00o\x00n\x00d\x00")
	}
}

// While prepare waits for input, it ends at the first signal, or as soon as something else fails.
func TestPrepareIdle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stdin string // written before the input stops
		args  string
		sig   os.Signal // nil if prepare fails on its own
		want  string
	}{
		"Ctrl-C":             {"some text", "-", syscall.SIGINT, "batchfs: interrupted\n"},
		"SIGTERM":            {"some text", "-", syscall.SIGTERM, "batchfs: interrupted\n"},
		"nobody writes":      {"", "fifo", syscall.SIGTERM, "batchfs: interrupted\n"},
		"text that is wrong": {strings.Repeat("no JSON\n", 1<<17), "- --as jsonl", nil, "batchfs: -: line 1: not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			e2e.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
			r, w, err := os.Pipe()
			e2e.NoError(t, err)
			defer w.Close()
			cmd := exec.Command(e2e.Batchfs, append([]string{"prepare", "--by", "byte", "--val", "0", "--out", "out"}, strings.Fields(c.args)...)...)
			var stderr strings.Builder
			cmd.Dir, cmd.Stdin, cmd.Stderr = dir, r, &stderr
			ended := e2e.Begin(t, cmd)
			e2e.NoError(t, r.Close())
			io.WriteString(w, c.stdin) // fails if prepare has ended
			if c.sig != nil {
				e2e.Await(t, "prepare to read the text", func() (any, bool) {
					_, err := os.Stat(filepath.Join(dir, "out", ".prepare"))
					left, ioctl := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
					return fmt.Sprintf("%d bytes left, %v, %v", left, err, ioctl), err == nil && ioctl == nil && left == 0
				})
				e2e.NoError(t, cmd.Process.Signal(c.sig))
			}
			e2e.AwaitExit(t, cmd, ended)
			if cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(stderr.String(), c.want) {
				t.Errorf("%v, standard error %q, want exit status 1 and %q", cmd.ProcessState, &stderr, c.want)
			}
			if left, err := os.ReadDir(filepath.Join(dir, "out")); err != nil || len(left) > 0 {
				t.Errorf("prepare left %v (error %v), want nothing", left, err)
			}
		})
	}
}
