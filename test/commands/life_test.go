// Package commands tests the commands: what they do, print and reject, and how a mount begins and
// ends.
package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// However a mount is ended, it leaves neither a mount nor a process.
func TestEnding(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 1)
	end := map[string]func(t *testing.T, m *e2e.Mounted){
		"SIGINT":  func(t *testing.T, m *e2e.Mounted) { m.Cmd.Process.Signal(syscall.SIGINT) },
		"Ctrl-\\": func(t *testing.T, m *e2e.Mounted) { m.Cmd.Process.Signal(syscall.SIGQUIT) },
		"unmount": func(t *testing.T, m *e2e.Mounted) {
			e2e.Run(t, e2e.Batchfs, "unmount", m.Dir)
			e2e.NotMounted(t, m.Dir)
		},
		"umount": func(t *testing.T, m *e2e.Mounted) { e2e.Run(t, "umount", m.Dir) },
	}
	for name, end := range end {
		t.Run(name, func(t *testing.T) {
			if name == "umount" && os.Geteuid() != 0 {
				t.Skip("only root may run umount")
			}
			m := e2e.Mount(t, "-c", config)
			e2e.Equal(t, "batch 0", e2e.FileDigest(t, m, "train/next"), want[0])
			end(t, m)
			m.AwaitExitStatus(t, 0)
		})
	}
}

// A reader can finish a file that was open when the mount was told to end. Meanwhile, unmount
// fails.
func TestEndingUnderAReader(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config, "--set", "mount.grace=1h")
	h := e2e.StartHandles(t, m.Dir)
	h.Do("open val/batch/3")
	h.Do("read 0 0 100")
	e2e.CheckFails(t, "busy", e2e.Batchfs, "unmount", m.Dir)
	m.Cmd.Process.Signal(syscall.SIGTERM)
	e2e.AwaitText(t, m.Out, "still open")
	e2e.Contains(t, "a read after SIGTERM", h.Do("read 0 0 1000"), "256 ")
	h.Do("close")
	m.AwaitEnd(t)
	if strings.Contains(m.Out.String(), "their readers get errors") {
		t.Errorf("the mount did not wait for its last reader:\n%s", m.Out)
	}
}

// If the supervisor is stopped, commands that need it fail immediately and say how to continue it.
// Only unmount --force has an effect.
func TestStoppedSupervisor(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	supervisor, workers := m.Cmd.Process.Pid, m.AwaitStandby(t)
	e2e.NoError(t, syscall.Kill(supervisor, syscall.SIGSTOP))
	t.Cleanup(func() { syscall.Kill(supervisor, syscall.SIGCONT) })
	for _, worker := range workers { // without a worker, accessing the mount hangs
		e2e.NoError(t, syscall.Kill(worker, syscall.SIGKILL))
	}
	stopped := fmt.Sprintf("%s is stuck: its supervisor, process %d, is stopped; continue it with: kill -CONT %[2]d", m.Dir, supervisor)
	for _, args := range [][]string{{"restart", m.Dir}, {"unmount", m.Dir}, {"seek", m.Path("train"), "7"}, {"why", m.Path("train/next")}} {
		e2e.CheckFails(t, stopped, append([]string{e2e.Batchfs}, args...)...)
	}
	e2e.Equal(t, "the mount is still there", e2e.IsMounted(t, m.Dir), true)
	e2e.CheckFails(t, fmt.Sprintf("is stopped; let it end with: kill -CONT %d", supervisor), e2e.Batchfs, "unmount", "--force", m.Dir)
	e2e.NotMounted(t, m.Dir)
	e2e.NoError(t, syscall.Kill(supervisor, syscall.SIGCONT))
	m.AwaitEnd(t)
}

// mount -d returns 0 exactly when batches can be read, even in a directory that was removed.
func TestBackground(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, want := e2e.SmallConfig(t, 1)
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	// Reads of this pipe end only if the mount keeps no files of its caller open.
	ended, open, err := os.Pipe()
	e2e.NoError(t, err)
	cmd := e2e.Command(t, "sh", "-c", `rmdir "$PWD" && exec "$@"`, "sh", "env", "GOMAXPROCS=1", e2e.Batchfs, "mount", "-d", "-c", config, "--log", log, dir)
	cmd.Dir = t.TempDir()
	cmd.ExtraFiles = []*os.File{open}
	output := e2e.Must(cmd.Output())(t)
	open.Close()
	ended.SetReadDeadline(testwait.Deadline(t))
	e2e.Must(io.ReadAll(ended))(t)
	out := string(output)
	e2e.Equal(t, "batch 0", e2e.FileDigest(t, &e2e.Mounted{Dir: dir}, "train/next"), want[0])
	pid := e2e.Must(strconv.Atoi(regexp.MustCompile(`process (\d+)`).FindStringSubmatch(out)[1]))(t)
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "mounted") {
		t.Errorf("the log: error %v, %q, want a line that says mounted", err, text)
	}
	e2e.Run(t, e2e.Batchfs, "restart", dir)
	e2e.Run(t, e2e.Batchfs, "unmount", dir)
	e2e.Equal(t, "the process has ended when unmount returns", e2e.Ended(pid), true)
}

// mount --print-config mounts nothing. What it prints mounts the same, with the same mountpoint.
func TestPrintConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e2e.WriteTokens(t, filepath.Join(dir, "train.bin"), 5000, 2)
	mountpoint, config := filepath.Join(dir, "mnt"), filepath.Join(dir, "config.toml")
	e2e.NoError(t, os.Mkdir(mountpoint, 0o755))
	args := []string{"--data", dir, "--set", "batch.block_size=64", "--set", "splits.train.order=shuffle"}
	text := e2e.Run(t, append([]string{e2e.Batchfs, "mount", mountpoint, "--print-config"}, args...)...)
	e2e.Equal(t, "lines", strings.Count(text, "\n"), 12)
	e2e.NotMounted(t, mountpoint)
	e2e.CheckFails(t, "[print-config background]", e2e.Batchfs, "mount", "--print-config", "-d")
	e2e.CheckFails(t, "is not UTF-8", e2e.Batchfs, "mount", "--print-config", "--set", "splits.train.tokens=\xff")

	e2e.Write(t, config, text)
	e2e.Equal(t, "printed again", e2e.Run(t, e2e.Batchfs, "mount", "--print-config", "-c", config), text)
	m := e2e.StartMount(t, mountpoint, e2e.Command(t, e2e.Batchfs, "mount", "-c", config))
	m.AwaitReady(t)
	e2e.Equal(t, "identity", m.Info(t, "train").Identity, e2e.Mount(t, args...).Info(t, "train").Identity)
}

// A mount raises the read-ahead of the kernel to 1 MiB.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root may set it")
	m := e2e.Mount(t, "--data", filepath.Dir(e2e.WriteTokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)))
	var st syscall.Stat_t
	e2e.NoError(t, syscall.Stat(m.Dir, &st))
	file := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	if err := unix.Access(file, unix.W_OK); err != nil {
		t.Skip(file, err) // some containers may not write it
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "1024\n" {
		t.Errorf("%s: error %v, %q, want 1024", file, err, got)
	}
}

// A mount keeps serving after nobody can read its output any more.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 1)
	dir := t.TempDir()
	r, w, err := os.Pipe()
	e2e.NoError(t, err)
	cmd := exec.Command(e2e.Batchfs, "mount", "-c", config, dir)
	cmd.Stdout, cmd.Stderr = w, w
	m := e2e.StartMount(t, dir, cmd)
	w.Close()
	r.SetReadDeadline(testwait.Deadline(t))
	e2e.Must(r.Read(make([]byte, 1)))(t)
	r.Close()
	e2e.Try(t, "stat", m.Path("train/colour=red")) // writes to the log
	e2e.Equal(t, "batch 0", e2e.FileDigest(t, m, "train/next"), want[0])
}

// mount reports that batches can be read, or a failure that only its supervisor finds. Then it
// closes the descriptor, which no other process of the mount has open.
func TestReports(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, _ := e2e.SmallConfig(t, 1)
	dir := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	log := filepath.Join(t.TempDir(), "log")
	report := func(kind string, end func(), command ...string) {
		t.Helper()
		command = append(command, "sh", "-c", `exec "$0" "$@" 3>&1 >>`+log+" 2>&1", e2e.Batchfs, "mount", "--status-fd=3", "-c", config, "--log", log, dir)
		for _, background := range []string{"--background=false", "--background"} {
			cmd := e2e.Command(t, command[0], append(command[1:], background)...)
			out := e2e.Must(cmd.StdoutPipe())(t)
			e2e.NoError(t, cmd.Start())
			var got struct{ Kind, Message string }
			if text := e2e.Must(io.ReadAll(out))(t); json.Unmarshal(text, &got) != nil || got.Kind != kind {
				t.Errorf("%s: reported %q, want kind %s", cmd.Args, text, kind)
			}
			end()
			cmd.Wait()
			e2e.NotMounted(t, dir)
		}
	}
	report("ready", func() { e2e.Run(t, e2e.Batchfs, "unmount", dir) })
	nothing := func() {}
	if os.Geteuid() == 0 {
		report("no_fuse", nothing, "setpriv", "--bounding-set=-all", "--inh-caps=-all")
	}
	file := e2e.Must(os.Open(dir))(t)
	defer file.Close()
	e2e.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	report("busy", nothing)
}

// A mount in the foreground ends when its terminal is closed, but not with nohup, nor if it was
// disowned before; then nothing happens. A restart never ends it.
func TestTerminalIsClosed(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, _ := e2e.SmallConfig(t, 1)
	for mode, want := range map[string]string{"plain": "ended\n", "nohup": "restarted\n", "disowned": "restarted\n"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
			out := e2e.Run(t, e2e.Python, "-c", `
import os, pty, signal, subprocess, sys
mode, program, dir = sys.argv[1:4]
reports, theirs = os.pipe()
pid, terminal = pty.fork()
if pid == 0:
    if mode == "nohup":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if mode == "disowned" and os.fork() != 0:
        signal.pause()
    if mode == "disowned":
        os.setpgid(0, 0)
    os.set_inheritable(theirs, True)
    os.execv(program, [program, "mount", dir, *sys.argv[4:], "--log", dir + ".log", "--status-fd", str(theirs)])
os.close(theirs)
report = os.read(reports, 1000)
if b'"kind":"ready"' not in report:
    sys.exit(f"it ended: {report}")
os.close(terminal)
if mode != "nohup":
    os.waitpid(pid, 0)
if mode == "plain":
    print("ended")
else:
    subprocess.run([program, "restart", dir], check=True, stdout=subprocess.DEVNULL)
    log = open(dir + ".log").read()
    print("restarted" if log.count("restarted:") == 1 else log)
    subprocess.run([program, "unmount", dir], check=True, stdout=subprocess.DEVNULL)`, mode, e2e.Batchfs, dir, "-c", config)
			if out != want || e2e.IsMounted(t, dir) {
				t.Errorf("%q, mounted: %v, want %q and not mounted", out, e2e.IsMounted(t, dir), want)
			}
		})
	}
}

// With nohup, the end of a session does not end a command.
func TestNohup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	cmd := exec.Command("nohup", e2e.PlainBatchfs, "prepare", "-", "--by", "byte", "--val", "0", "--out", dir)
	input := e2e.Must(cmd.StdinPipe())(t)
	ended := e2e.Begin(t, cmd)
	e2e.AwaitRun(t, "test", "-d", filepath.Join(dir, ".prepare"))
	e2e.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	io.WriteString(input, "text")
	input.Close()
	e2e.AwaitExit(t, cmd, ended)
	e2e.Equal(t, "the exit status", cmd.ProcessState.ExitCode(), 0)
	e2e.Run(t, "test", "-e", filepath.Join(dir, "train.bin"))
}
