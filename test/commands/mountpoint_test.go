package commands

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// Of several mounts on one directory at the same time one is made. The others say so, and nothing is left of them.
func TestMountAtOnce(t *testing.T) {
	e2e.NeedFUSE(t)
	config, want := e2e.Small(t, 2)
	dir := t.TempDir()
	t.Cleanup(func() {
		for e2e.IsMounted(t, dir) {
			e2e.Try(t, e2e.PlainBatchfs, "unmount", "--force", dir)
		}
	})
	const rounds, at = 3, 4
	for range rounds {
		var cmds [at]*exec.Cmd
		var said [at]strings.Builder
		logs := t.TempDir()
		for i := range cmds {
			cmds[i] = e2e.Command(t, e2e.PlainBatchfs, "mount", "-d", "-c", config, "--log", filepath.Join(logs, fmt.Sprint(i)), dir)
			cmds[i].Stderr = &said[i]
			e2e.NoError(t, cmds[i].Start())
		}
		won := -1
		for i, cmd := range cmds {
			if cmd.Wait() == nil {
				if won >= 0 {
					t.Errorf("both %d and %d say that they mounted", won, i)
				}
				won = i
			} else if text := said[i].String(); !strings.Contains(text, "is already mounted there") && !strings.Contains(text, "is mounting there") {
				t.Errorf("one that did not mount says %s", text)
			}
		}
		if won < 0 {
			t.Fatalf("none mounted: %s", said[0].String())
		}
		if list, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir)); err != nil || len(list) != 1 {
			t.Errorf("the kernel has %d mounts there (%v)", len(list), err)
		}
		open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, fd := range open {
			if path, _ := os.Readlink(fd); filepath.Dir(path) == logs && filepath.Base(path) != fmt.Sprint(won) {
				t.Errorf("%s is left of a mount that was not made", fd)
			}
		}
		for k := range 2 {
			e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Read(t, "read", filepath.Join(dir, "train/next"))[0], want[k])
		}
		e2e.Run(t, e2e.PlainBatchfs, "unmount", dir)
	}
}

// A mount whose parent directory is moved is the same mount at another path: there it is looked at, restarted, mounted again and ended.
func TestMovedMount(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	for name, args := range map[string][]string{"resend": nil, "no resend": {"--no-resend"}} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			old, moved := filepath.Join(base, "old"), filepath.Join(base, "moved")
			e2e.NoError(t, os.MkdirAll(filepath.Join(old, "mnt"), 0o755))
			m := e2e.MountAt(t, filepath.Join(old, "mnt"), exec.Command(e2e.Batchfs), append(args, "-c", config, "--set", "mount.grace=1h")...)
			e2e.NoError(t, os.Rename(old, moved))
			e2e.NoError(t, os.MkdirAll(m.Dir, 0o755)) // where nothing of it is
			m.Dir = filepath.Join(moved, "mnt")
			e2e.Says(t, "ok   mountpoint: "+m.Dir+" is mounted, served by", e2e.PlainBatchfs, "doctor", m.Dir)
			e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
			m.Seek(t, "train", 7, 0)
			worker := m.AwaitWorker(t)
			e2e.NoError(t, syscall.Kill(worker, syscall.SIGKILL))
			e2e.Await(t, "another worker at the new path", func() bool {
				_, _, err := e2e.Try(t, "head", "-c1", m.Path("train/next"))
				return err == nil && m.Worker(t) != worker
			})
			e2e.Run(t, e2e.PlainBatchfs, "unmount", m.Dir)
			m.EndsWith(t, 0)
		})
	}
}

// Commands understand a path in a mount of one split alone, as docker -v makes it.
func TestMountOfOneSplit(t *testing.T) {
	e2e.NeedRoot(t, "bind mounts are root's")
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	split, ranked := t.TempDir(), t.TempDir()
	const rank = "train/rank=1,world=2"
	for dir, path := range map[string]string{split: "train", ranked: rank} {
		e2e.NoError(t, syscall.Mount(m.Path(path), dir, "", syscall.MS_BIND, ""))
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	for dir, path := range map[string]string{split: "train", ranked: rank, filepath.Join(split, "rank=1,world=2"): rank} {
		e2e.Equal(t, fmt.Sprintf("cat %s is not cat %s", dir, path), e2e.Run(t, e2e.PlainBatchfs, "cat", dir, "--from", "3"), e2e.Run(t, e2e.PlainBatchfs, "cat", m.Path(path), "--from", "3"))
		e2e.Equal(t, "inspect "+dir, e2e.Run(t, e2e.PlainBatchfs, "inspect", dir, "3"), e2e.Run(t, e2e.PlainBatchfs, "inspect", m.Path(path), "3"))
		out, _, err := e2e.Try(t, e2e.PlainBatchfs, "doctor", dir)
		if err != nil || !strings.Contains(out, " is mounted, served by process ") || !strings.Contains(out, "ok   mounted train: ") {
			t.Errorf("doctor %s: %v %s", dir, err, out)
		}
	}
	e2e.Run(t, e2e.PlainBatchfs, "seek", split, "70")
	e2e.Run(t, e2e.PlainBatchfs, "seek", ranked, "80")
	e2e.Equal(t, "the cursors are", m.Cursor(t, "train")+" "+m.Cursor(t, rank), "70 80")
	e2e.Fails(t, "is no split in the mount", e2e.PlainBatchfs, "seek", filepath.Join(split, "batch"), "5")
	e2e.Fails(t, "next", e2e.PlainBatchfs, "inspect", filepath.Join(split, "next"), "5")
}

// Anybody can mount something that calls itself a batchfs, and names whatever process as its supervisor. No command touches that
// process.
func TestForgedSupervisor(t *testing.T) {
	e2e.NeedFUSE(t)
	innocent := exec.Command("sleep", "infinity")
	e2e.NoError(t, innocent.Start())
	t.Cleanup(func() {
		innocent.Process.Kill()
		innocent.Wait()
	})
	pid := innocent.Process.Pid
	stat := e2e.Run(t, "cat", fmt.Sprintf("/proc/%d/stat", pid))
	began := strings.Fields(stat[strings.LastIndex(stat, ")"):])[20]
	namespace := e2e.Run(t, "stat", "-L", "-c", "%i", "/proc/self/ns/pid")
	dir := t.TempDir()
	server, err := gofs.Mount(dir, &gofs.Inode{}, &gofs.Options{MountOptions: fuse.MountOptions{
		FsName: fmt.Sprintf("batchfs:%d:%s:%s", pid, began, strings.TrimSpace(namespace)), Name: "batchfs", DirectMount: true}})
	e2e.NoError(t, err)
	t.Cleanup(func() {
		if e2e.IsMounted(t, dir) {
			e2e.NoError(t, server.Unmount())
		}
	})
	for _, args := range [][]string{{"doctor", dir}, {"restart", dir}, {"seek", dir + "/train", "7"}, {"cat", dir + "/train"}, {"inspect", dir + "/train", "7"}} {
		if out, stderr, err := e2e.Try(t, append([]string{e2e.PlainBatchfs}, args...)...); err == nil || !strings.Contains(out+stderr, "dead") {
			t.Errorf("%s: %v %s%s", args, err, out, stderr)
		}
	}
	user := e2e.StartClient(t, e2e.Command(t, "sh", "-c", `cd "$0" && echo ready && exec sleep infinity`, dir)) // so that it takes force to unmount
	user.Ready(t)
	e2e.Try(t, e2e.PlainBatchfs, "unmount", dir)
	e2e.Try(t, e2e.PlainBatchfs, "unmount", "--force", dir)
	var status syscall.WaitStatus
	if ended, err := syscall.Wait4(pid, &status, syscall.WNOHANG|syscall.WUNTRACED, nil); err != nil || ended != 0 {
		t.Errorf("the innocent process: %v, status %x", err, status)
	}
}

// cat and inspect end at the first signal, also while a disk does not answer.
func TestInterruptedCommands(t *testing.T) {
	d := e2e.NewFaultyFile(t, e2e.VersionOf(0, 500_000))
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.train.order=sequential")
	for _, args := range [][]string{
		{"cat", m.Path("train"), "--from", "9"},
		{"cat", "train", "-c", "/dev/null", "--set", "splits.train.tokens=" + d.Path},
		{"inspect", "train", "9", "-c", "/dev/null", "--set", "splits.train.tokens=" + d.Path},
	} {
		// Again and again, because which thread of the process reads is chance.
		for i := range 8 {
			sig := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2]
			d.Set(t, e2e.Hang)
			cmd := e2e.Command(t, e2e.PlainBatchfs, args...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			ended := e2e.Begin(t, cmd)
			d.Await(t, 1)
			began := time.Now()
			e2e.NoError(t, cmd.Process.Signal(sig))
			testwait.For(t, "the end", ended)
			e2e.InTime(t, args[0], time.Since(began), time.Second)
			if cmd.ProcessState.ExitCode() != 1 || stderr.String() != "batchfs: interrupted\n" {
				t.Errorf("%s, %v: %v %s", args, sig, cmd.ProcessState, &stderr)
			}
			d.Set(t, e2e.Healthy)
		}
	}
}

// A signal ends a mount that is starting, whatever it waits for, and nothing stays mounted.
func TestInterruptedMount(t *testing.T) {
	d := e2e.NewFaultyFile(t, e2e.VersionOf(0, 500_000))
	intact := e2e.Write(t, filepath.Join(t.TempDir(), "intact.bin"), e2e.VersionOf(1, 100_000))
	var text strings.Builder
	for range 3999 {
		fmt.Fprintf(&text, "[[splits.train.sources]]\ntokens = %q\nweight = 1\n", intact)
	}
	// The weight gives the first batch rows from this source.
	fmt.Fprintf(&text, "[[splits.train.sources]]\ntokens = %q\nweight = 1e6\n", d.Path)
	config := e2e.Write(t, filepath.Join(t.TempDir(), "config.toml"), text.String())
	for name, args := range map[string][]string{"foreground": nil, "background": {"-d", "--log", filepath.Join(t.TempDir(), "log")}} {
		for i, mode := range []e2e.Mode{e2e.Hang, e2e.HangOpen} {
			t.Run(fmt.Sprint(name, "/", mode), func(t *testing.T) {
				dir := t.TempDir()
				d.Set(t, mode)
				cmd := e2e.Command(t, e2e.PlainBatchfs, append([]string{"mount", "-c", config, dir}, args...)...)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				ended := e2e.Begin(t, cmd)
				// This runs before the cleanup of Begin, which waits for a process that may hang
				// until then.
				t.Cleanup(func() { d.Set(t, e2e.Healthy) })
				d.Await(t, 1)
				began := time.Now()
				e2e.NoError(t, cmd.Process.Signal([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i]))
				testwait.For(t, "the end", ended)
				e2e.InTime(t, "the end", time.Since(began), time.Second)
				if cmd.ProcessState.ExitCode() != 1 || stderr.String() != "batchfs: interrupted\n" {
					t.Errorf("%v %s", cmd.ProcessState, &stderr)
				}
				e2e.NotMounted(t, dir)
				d.Set(t, e2e.Healthy)
				e2e.LeavesNothing(t, dir, dir)
			})
		}
	}
}
