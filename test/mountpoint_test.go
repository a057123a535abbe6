package test

import (
	"fmt"
	"io"
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
)

// Of several mounts on one directory at the same time one is made. The others say so, and nothing is left of them.
func TestMountAtOnce(t *testing.T) {
	needFUSE(t)
	config, want := small(t, 2)
	dir := t.TempDir()
	t.Cleanup(func() {
		for isMounted(t, dir) {
			try(t, plainBatchfs, "unmount", "--force", dir)
		}
	})
	const rounds, at = 3, 4
	for range rounds {
		var cmds [at]*exec.Cmd
		var said [at]strings.Builder
		logs := t.TempDir()
		for i := range cmds {
			cmds[i] = command(t, plainBatchfs, "mount", "-d", "-c", config, "--log", filepath.Join(logs, fmt.Sprint(i)), dir)
			cmds[i].Stderr = &said[i]
			noError(t, cmds[i].Start())
		}
		won := -1
		for i, cmd := range cmds {
			if cmd.Wait() == nil {
				if won >= 0 {
					t.Errorf("both %d and %d say that they mounted", won, i)
				}
				won = i
			} else if !strings.Contains(said[i].String(), "a batchfs is already mounted there; batchfs unmount "+dir+" ends it") {
				t.Errorf("one that did not mount says %s", &said[i])
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
			if got := read(t, "read", filepath.Join(dir, "train/next"))[0]; got != want[k] {
				t.Errorf("batch %d is %s, want %s", k, got, want[k])
			}
		}
		run(t, plainBatchfs, "unmount", dir)
	}
}

// A mount whose parent directory is moved is the same mount at another path: there it is looked at, restarted, mounted again and ended.
func TestMovedMount(t *testing.T) {
	config, _ := small(t, 1)
	for name, test := range map[string]struct {
		args []string
		end  func(t *testing.T, m *mounted)
	}{
		"unmount": {nil, func(t *testing.T, m *mounted) { run(t, plainBatchfs, "unmount", m.dir) }},
		"SIGTERM": {nil, func(t *testing.T, m *mounted) { m.cmd.Process.Signal(syscall.SIGTERM) }},
		"no resend": {[]string{"--no-resend"}, func(t *testing.T, m *mounted) {
			worker := m.worker(t)
			noError(t, syscall.Kill(worker, syscall.SIGKILL))
			await(t, "another mount at the new path", func() bool {
				_, _, err := try(t, "head", "-c1", m.path("train/next"))
				return err == nil && m.worker(t) != worker
			})
			m.cmd.Process.Signal(syscall.SIGTERM)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			old, moved := filepath.Join(base, "old"), filepath.Join(base, "moved")
			noError(t, os.MkdirAll(filepath.Join(old, "mnt"), 0o755))
			m := mountAt(t, filepath.Join(old, "mnt"), exec.Command(batchfs), append(test.args, "-c", config, "--set", "mount.grace=1h")...)
			noError(t, os.Rename(old, moved))
			noError(t, os.MkdirAll(m.dir, 0o755)) // where nothing of it is
			m.dir = filepath.Join(moved, "mnt")
			if out, _, err := try(t, plainBatchfs, "doctor", m.dir); err != nil || !strings.Contains(out, "ok   mountpoint: "+m.dir+" is mounted, served by") {
				t.Errorf("doctor: %v %s", err, out)
			}
			run(t, plainBatchfs, "restart", m.dir)
			m.seek(t, "train", 7, 0)
			test.end(t, m)
			m.awaitEnd(t)
			if code := m.cmd.ProcessState.ExitCode(); code != 0 || isMounted(t, m.dir) {
				t.Errorf("exit status %d, mounted: %v", code, isMounted(t, m.dir))
			}
		})
	}
}

// A mount that cannot be made again ends with an error, and leaves the directory as it is.
func TestMountedAgainInVain(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("bind mounts are root's")
	}
	config, _ := small(t, 1)
	dir, under := filepath.Join(t.TempDir(), "mnt"), t.TempDir()
	noError(t, os.Mkdir(dir, 0o755))
	noError(t, syscall.Mount(filepath.Dir(dir), under, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { noError(t, syscall.Unmount(under, syscall.MNT_DETACH)) })
	m := mountAt(t, dir, exec.Command(batchfs), "--no-resend", "-c", config)
	write(t, filepath.Join(under, "mnt", "precious"), nil)
	noError(t, syscall.Kill(m.awaitWorker(t), syscall.SIGKILL))
	m.awaitEnd(t)
	if code := m.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(m.out.String(), "is not empty (it holds precious)") || isMounted(t, dir) {
		t.Errorf("exit status %d, mounted: %v", code, isMounted(t, dir))
	}
	if _, err := os.Stat(filepath.Join(dir, "precious")); err != nil {
		t.Error(err)
	}
}

// Commands understand a path in a mount of one split alone, as docker -v makes it.
func TestMountOfOneSplit(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("bind mounts are root's")
	}
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	split, ranked := t.TempDir(), t.TempDir()
	const rank = "train/rank=1,world=2"
	for dir, path := range map[string]string{split: "train", ranked: rank} {
		noError(t, syscall.Mount(m.path(path), dir, "", syscall.MS_BIND, ""))
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	for dir, path := range map[string]string{split: "train", ranked: rank, filepath.Join(split, "rank=1,world=2"): rank} {
		if got, want := run(t, plainBatchfs, "cat", dir, "--from", "3"), run(t, plainBatchfs, "cat", m.path(path), "--from", "3"); got != want {
			t.Errorf("cat %s is not cat %s", dir, path)
		}
		if got, want := run(t, plainBatchfs, "inspect", dir, "3"), run(t, plainBatchfs, "inspect", m.path(path), "3"); got != want {
			t.Errorf("inspect %s says\n%s\nof %s\n%s", dir, got, path, want)
		}
		out, _, err := try(t, plainBatchfs, "doctor", dir)
		if err != nil || !strings.Contains(out, " is mounted, served by process ") || !strings.Contains(out, "ok   mounted train: ") {
			t.Errorf("doctor %s: %v %s", dir, err, out)
		}
	}
	run(t, plainBatchfs, "seek", split, "70")
	run(t, plainBatchfs, "seek", ranked, "80")
	if got := m.cursor(t, "train") + " " + m.cursor(t, rank); got != "70 80" {
		t.Errorf("the cursors are %s", got)
	}
	if _, stderr, err := try(t, plainBatchfs, "seek", filepath.Join(split, "batch"), "5"); err == nil || !strings.Contains(stderr, "is no split in the mount") {
		t.Errorf("seek of no split: %v %s", err, stderr)
	}
	if _, stderr, err := try(t, plainBatchfs, "inspect", filepath.Join(split, "next"), "5"); err == nil || !strings.Contains(stderr, "next") {
		t.Errorf("inspect of no split: %v %s", err, stderr)
	}
}

// Anybody can mount something that calls itself a batchfs, and names whatever process as its supervisor. No command touches that
// process.
func TestForgedSupervisor(t *testing.T) {
	needFUSE(t)
	innocent := exec.Command("sleep", "infinity")
	noError(t, innocent.Start())
	t.Cleanup(func() {
		innocent.Process.Kill()
		innocent.Wait()
	})
	pid := innocent.Process.Pid
	stat := run(t, "cat", fmt.Sprintf("/proc/%d/stat", pid))
	began := strings.Fields(stat[strings.LastIndex(stat, ")"):])[20]
	namespace := run(t, "stat", "-L", "-c", "%i", "/proc/self/ns/pid")
	dir := t.TempDir()
	server, err := gofs.Mount(dir, &gofs.Inode{}, &gofs.Options{MountOptions: fuse.MountOptions{
		FsName: fmt.Sprintf("batchfs:%d:%s:%s", pid, began, strings.TrimSpace(namespace)), Name: "batchfs", DirectMount: true}})
	noError(t, err)
	t.Cleanup(func() {
		if isMounted(t, dir) {
			noError(t, server.Unmount())
		}
	})
	for _, args := range [][]string{{"doctor", dir}, {"restart", dir}, {"seek", dir + "/train", "7"}, {"cat", dir + "/train"}, {"inspect", dir + "/train", "7"}} {
		if out, stderr, err := try(t, append([]string{plainBatchfs}, args...)...); err == nil || !strings.Contains(out+stderr, "dead") {
			t.Errorf("%s: %v %s%s", args, err, out, stderr)
		}
	}
	user := command(t, "sh", "-c", `cd "$0" && echo there && exec sleep infinity`, dir) // so that it takes force to unmount
	out, err := user.StdoutPipe()
	noError(t, err)
	noError(t, user.Start())
	defer user.Wait()
	defer user.Process.Kill()
	_, err = io.ReadFull(out, make([]byte, len("there\n")))
	noError(t, err)
	try(t, plainBatchfs, "unmount", dir)
	try(t, plainBatchfs, "unmount", "--force", dir)
	var status syscall.WaitStatus
	if ended, err := syscall.Wait4(pid, &status, syscall.WNOHANG|syscall.WUNTRACED, nil); err != nil || ended != 0 {
		t.Errorf("the innocent process: %v, status %x", err, status)
	}
}

// cat and inspect end at the first signal, also while a disk does not answer.
func TestInterruptedCommands(t *testing.T) {
	d := newDouble(t, versionOf(0, 500_000))
	m := mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.path, "--set", "splits.train.order=sequential")
	for _, args := range [][]string{
		{"cat", m.path("train"), "--from", "9"},
		{"cat", "train", "-c", "/dev/null", "--set", "splits.train.tokens=" + d.path},
		{"inspect", "train", "9", "-c", "/dev/null", "--set", "splits.train.tokens=" + d.path},
	} {
		// Again and again, because which thread of the process reads is chance.
		for i := range 20 {
			sig := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2]
			d.set(t, hang)
			cmd := exec.Command(plainBatchfs, args...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			noError(t, cmd.Start())
			ended := make(chan struct{})
			go func() {
				cmd.Wait()
				close(ended)
			}()
			d.await(t, 1)
			began := time.Now()
			noError(t, cmd.Process.Signal(sig))
			select {
			case <-ended:
			case <-time.After(limit):
				t.Fatalf("%s does not end on %v", args, sig)
			}
			inTime(t, args[0], time.Since(began), time.Second)
			if cmd.ProcessState.ExitCode() != 1 || stderr.String() != "batchfs: interrupted\n" {
				t.Errorf("%s, %v: %v %s", args, sig, cmd.ProcessState, &stderr)
			}
			d.set(t, healthy)
		}
	}
}
