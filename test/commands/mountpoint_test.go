package commands

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// A mount whose parent directory was moved can be examined, restarted and ended at its new path.
func TestMovedMount(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	for name, args := range map[string][]string{"resend": nil, "no resend": {"--no-resend"}} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			old, moved := filepath.Join(base, "old"), filepath.Join(base, "moved")
			e2e.NoError(t, os.MkdirAll(filepath.Join(old, "mnt"), 0o755))
			m := e2e.MountAt(t, filepath.Join(old, "mnt"), exec.Command(e2e.Batchfs), append(args, "-c", config, "--set", "mount.grace=1h")...)
			e2e.NoError(t, os.Rename(old, moved))
			e2e.NoError(t, os.MkdirAll(m.Dir, 0o755)) // an empty directory at the old path
			m.Dir = filepath.Join(moved, "mnt")
			e2e.CheckOutput(t, "ok   mountpoint: "+m.Dir+" is mounted, served by", e2e.PlainBatchfs, "doctor", m.Dir)
			e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
			m.Seek(t, "train", 7, 0)
			worker := m.AwaitWorker(t)
			e2e.NoError(t, syscall.Kill(worker, syscall.SIGKILL))
			e2e.Await(t, "another worker at the new path", func() (any, bool) {
				_, stderr, err := e2e.Try(t, "head", "-c1", m.Path("train/next"))
				now := m.Worker(t)
				return fmt.Sprintf("worker %d, was %d, %s", now, worker, stderr), err == nil && now != worker
			})
			e2e.Run(t, e2e.PlainBatchfs, "unmount", m.Dir)
			m.AwaitExitStatus(t, 0)
		})
	}
}

// Commands accept a path in a bind mount of a single split, such as docker -v makes.
func TestMountOfOneSplit(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root may bind mount")
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	split, ranked := t.TempDir(), t.TempDir()
	const rank = "train/rank=1,world=2"
	for dir, path := range map[string]string{split: "train", ranked: rank} {
		e2e.NoError(t, syscall.Mount(m.Path(path), dir, "", syscall.MS_BIND, ""))
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	for dir, path := range map[string]string{split: "train", ranked: rank, filepath.Join(split, "rank=1,world=2"): rank} {
		e2e.Equal(t, fmt.Sprintf("cat %s, which is %s", dir, path), e2e.Run(t, e2e.PlainBatchfs, "cat", dir, "--from", "3"), e2e.Run(t, e2e.PlainBatchfs, "cat", m.Path(path), "--from", "3"))
		e2e.Equal(t, "inspect "+dir, e2e.Run(t, e2e.PlainBatchfs, "inspect", dir, "3"), e2e.Run(t, e2e.PlainBatchfs, "inspect", m.Path(path), "3"))
		out, _, err := e2e.Try(t, e2e.PlainBatchfs, "doctor", dir)
		if err != nil || !strings.Contains(out, " is mounted, served by process ") || !strings.Contains(out, "ok   mounted train: ") {
			t.Errorf("doctor %s: error %v, %s\nwant that it is mounted, and train is ok", dir, err, out)
		}
	}
	e2e.Run(t, e2e.PlainBatchfs, "seek", split, "70")
	e2e.Run(t, e2e.PlainBatchfs, "seek", ranked, "80")
	e2e.Equal(t, "the cursors", m.Cursor(t, "train")+" "+m.Cursor(t, rank), "70 80")
	e2e.CheckFails(t, "is neither a split in the mount nor a settings directory", e2e.PlainBatchfs, "seek", filepath.Join(split, "batch"), "5")
	e2e.CheckFails(t, "next", e2e.PlainBatchfs, "inspect", filepath.Join(split, "next"), "5")
	link := filepath.Join(t.TempDir(), "link")
	e2e.NoError(t, errors.Join(os.Symlink(m.Path("train"), link), os.Truncate(filepath.Join(filepath.Dir(config), "train.bin"), 1000)))
	for path, want := range map[string]string{
		split + "/Next": `no file is called "Next"`, split + "/rank=3/batch/0": "rank: must be below world", ranked + "/batch/x": `"x" does not begin with a batch number`,
		split + "/batch/0": "train.bin", ranked + "/next": "train.bin", link + "/batch/x": `"x" does not begin with a batch number`, link + "/x=1/y": `unknown setting "x"`,
	} {
		e2e.CheckFails(t, want, e2e.PlainBatchfs, "why", path)
	}
}

// cat and inspect end at the first signal, even while a disk does not respond.
func TestInterruptedCommands(t *testing.T) {
	t.Parallel()
	d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 500_000))
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.train.order=sequential")
	for _, args := range [][]string{
		{"cat", m.Path("train"), "--from", "9"},
		{"cat", "train", "-c", "/dev/null", "--set", "splits.train.tokens=" + d.Path},
		{"inspect", "train", "9", "-c", "/dev/null", "--set", "splits.train.tokens=" + d.Path},
	} {
		// Which thread reads is random, so the test makes several attempts.
		for i := range 8 {
			sig := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2]
			d.Set(t, e2e.Hang)
			cmd := exec.Command(e2e.PlainBatchfs, args...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			ended := e2e.Begin(t, cmd)
			d.AwaitHanging(t, 1)
			began := time.Now()
			e2e.NoError(t, cmd.Process.Signal(sig))
			e2e.AwaitExit(t, cmd, ended)
			e2e.CheckDuration(t, args[0], time.Since(began), time.Second)
			if cmd.ProcessState.ExitCode() != 1 || stderr.String() != "batchfs: interrupted\n" {
				t.Errorf("%s, %v: %v, standard error %q, want exit status 1 and interrupted", args, sig, cmd.ProcessState, &stderr)
			}
			d.Set(t, e2e.Healthy)
		}
	}
}

// A signal ends a mount that is starting, whatever it waits for, and nothing stays mounted.
func TestInterruptedMount(t *testing.T) {
	t.Parallel()
	d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 500_000))
	intact := e2e.Write(t, filepath.Join(t.TempDir(), "intact.bin"), e2e.TokensOfVersion(1, 100_000))
	var text strings.Builder
	for range 3999 {
		fmt.Fprintf(&text, "[[splits.train.sources]]\ntokens = %q\nweight = 1\n", intact)
	}
	// With this weight, the first batch takes rows from this source.
	fmt.Fprintf(&text, "[[splits.train.sources]]\ntokens = %q\nweight = 1e6\n", d.Path)
	config := e2e.Write(t, filepath.Join(t.TempDir(), "config.toml"), text.String())
	for name, args := range map[string][]string{"foreground": nil, "background": {"-d", "--log", filepath.Join(t.TempDir(), "log")}} {
		for i, mode := range []e2e.Mode{e2e.Hang, e2e.HangOpen} {
			t.Run(fmt.Sprint(name, "/", mode), func(t *testing.T) {
				dir := t.TempDir()
				d.Set(t, mode)
				cmd := exec.Command(e2e.PlainBatchfs, append([]string{"mount", "-c", config, dir}, args...)...)
				// CheckNothingLeft finds processes by this.
				cmd.Env = append(os.Environ(), "MOUNTED_ON="+dir)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				ended := e2e.Begin(t, cmd)
				// This runs before the cleanup of Begin, which waits for a process that may hang
				// until d is healthy.
				t.Cleanup(func() { d.Set(t, e2e.Healthy) })
				d.AwaitHanging(t, 1)
				began := time.Now()
				e2e.NoError(t, cmd.Process.Signal([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i]))
				e2e.AwaitExit(t, cmd, ended)
				e2e.CheckDuration(t, "the end", time.Since(began), time.Second)
				if cmd.ProcessState.ExitCode() != 1 || stderr.String() != "batchfs: interrupted\n" {
					t.Errorf("%v, standard error %q, want exit status 1 and interrupted", cmd.ProcessState, &stderr)
				}
				e2e.NotMounted(t, dir)
				d.Set(t, e2e.Healthy)
				e2e.CheckNothingLeft(t, dir)
			})
		}
	}
}
