package test

import (
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
	"time"

	"golang.org/x/sys/unix"
)

// However a mount is ended, it leaves neither a mount nor a process.
func TestEnding(t *testing.T) {
	config, want := small(t, 1)
	end := map[string]func(t *testing.T, m *mounted){
		"SIGINT":  func(t *testing.T, m *mounted) { m.cmd.Process.Signal(syscall.SIGINT) },
		"SIGTERM": func(t *testing.T, m *mounted) { m.cmd.Process.Signal(syscall.SIGTERM) },
		"unmount": func(t *testing.T, m *mounted) {
			run(t, batchfs, "unmount", m.dir)
			if isMounted(t, m.dir) {
				t.Error("still mounted when unmount returned")
			}
		},
		"umount": func(t *testing.T, m *mounted) { run(t, "umount", m.dir) },
	}
	for name, end := range end {
		t.Run(name, func(t *testing.T) {
			if name == "umount" && os.Geteuid() != 0 {
				t.Skip("umount is root's")
			}
			m := mount(t, "-c", config)
			if got := read(t, "read", m.path("train/next"))[0]; got != want[0] {
				t.Errorf("batch 0 is %s, want %s", got, want[0])
			}
			end(t, m)
			m.awaitEnd(t)
			if code := m.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit status %d:\n%s", code, m.out)
			}
			if isMounted(t, m.dir) {
				t.Error("still mounted")
			}
		})
	}
}

// A reader that has a file open when the mount ends reads it to its end; unmount refuses meanwhile.
func TestEndingUnderAReader(t *testing.T) {
	config, _ := small(t, 1)
	m := mount(t, "-c", config, "--set", "mount.grace=1h")
	// Reads a part, waits for a line, and reads the rest.
	reader := command(t, "sh", "-c", `exec 3<"$1"; head -c 100 <&3 >/dev/null; echo open; read line; cat <&3 | wc -c`, "sh", m.path("val/batch/3"))
	in, err := reader.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := reader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := try(t, batchfs, "unmount", m.dir); err == nil || !strings.Contains(stderr, "busy") {
		t.Errorf("unmount under a reader: %v %s", err, stderr)
	}
	m.cmd.Process.Signal(syscall.SIGTERM)
	await(t, "what is waited for", func() bool { return strings.Contains(m.out.String(), "still open") })
	fmt.Fprintln(in, "go on")
	rest := make([]byte, 10)
	n, _ := out.Read(rest)
	if got := strings.TrimSpace(string(rest[:n])); got != fmt.Sprint(2*4*16*2-100) {
		t.Errorf("the reader got %q of the rest", got)
	}
	if err := reader.Wait(); err != nil {
		t.Error(err)
	}
	m.awaitEnd(t)
	if strings.Contains(m.out.String(), "their readers get errors") {
		t.Errorf("it did not end with its last reader:\n%s", m.out)
	}
}

// mount -d returns 0 when, and only when, batches can be read.
func TestBackground(t *testing.T) {
	needFUSE(t)
	config, want := small(t, 1)
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	// A pipe that the caller happens to have open, and whose end somebody waits for.
	ended, open, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, batchfs, "mount", "-d", "-c", config, "--log", log, dir)
	cmd.ExtraFiles = []*os.File{open}
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	open.Close()
	ended.SetReadDeadline(time.Now().Add(limit))
	if _, err := io.ReadAll(ended); err != nil {
		t.Error(err)
	}
	out := string(said)
	if got := read(t, "read", filepath.Join(dir, "train/next"))[0]; got != want[0] {
		t.Errorf("batch 0 is %s, want %s", got, want[0])
	}
	pid, err := strconv.Atoi(regexp.MustCompile(`process (\d+)`).FindStringSubmatch(out)[1])
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "mounted") {
		t.Errorf("log: %v %s", err, text)
	}
	run(t, batchfs, "unmount", dir)
	if err := syscall.Kill(pid, 0); err == nil {
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d still runs when unmount has returned", pid)
		}
	}

	// Here every check of the files passes, and the batch itself cannot be made.
	tokens(t, filepath.Join(filepath.Dir(config), "wide.bin"), 70_000, 4)
	_, stderr, err := try(t, batchfs, "mount", "-d", "--log", log, "--set", "splits.a.tokens="+filepath.Join(filepath.Dir(config), "wide.bin"),
		"-c", config, "--set", "splits.a.token_dtype=uint32", "--set", "splits.a.dtype=uint16", "--set", "splits.a.order=sequential", "--set", "splits.a.start=1090", dir)
	if err == nil || !strings.Contains(stderr, "which dtype uint16 cannot hold") || isMounted(t, dir) {
		t.Errorf("mount -d of tokens that do not fit: %v %s", err, stderr)
	}
}

// A mount of a terabyte is ready at once, and batches from all over it leave the daemon small.
func TestTerabyte(t *testing.T) {
	long(t)
	file := filepath.Join(t.TempDir(), "train.bin")
	write(t, file, nil)
	if err := os.Truncate(file, 1<<40); err != nil {
		lack(t, "no file of a terabyte here: %v", err)
	}
	for _, access := range []string{"remap", "advise", "pread"} {
		t.Run(access, func(t *testing.T) {
			began := time.Now()
			// The program as users have it: the race detector has memory of its own.
			m := mountProgram(t, exec.Command(plainBatchfs), "--set", "splits.train.tokens="+file, "--set", "memory.access="+access, "-c", "/dev/null")
			inTime(t, "to get ready", time.Since(began), time.Second)
			before := resident(m.worker(t))
			run(t, cReader, m.path("train/next"), "0", "0", "10000")
			after := resident(m.worker(t))
			if after > 64<<10 {
				t.Errorf("%d KiB resident after 10,000 batches", after)
			}
			t.Logf("VmRSS %d KiB at first, %d KiB after 10,000 batches", before, after)
			if got := m.cursor(t, "train"); got != "10000" {
				t.Errorf("cursor is %s", got)
			}
		})
	}
}

func TestOneThread(t *testing.T) {
	config, want := small(t, 100)
	cmd := exec.Command(batchfs)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	m := mountProgram(t, cmd, "-c", config)
	for k, got := range read(t, "numbers", m.path("train/next"), "100") {
		if got != want[k] {
			t.Fatalf("batch %d is %s, want %s", k, got, want[k])
		}
	}
}

// letUsersMount lets ordinary users mount until the end of the test.
func letUsersMount(t *testing.T) {
	t.Helper()
	needFUSE(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		lack(t, "no fusermount3: apt-get install fuse3")
	}
	if os.Geteuid() != 0 {
		t.Skip("every other test is this one")
	}
	// On ordinary hosts everybody may open /dev/fuse.
	info, err := os.Stat("/dev/fuse")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod("/dev/fuse", 0o666); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod("/dev/fuse", info.Mode().Perm()) })
	// And there is an /etc/mtab, which fusermount3 asks whose mount it is.
	if os.Symlink("/proc/self/mounts", "/etc/mtab") == nil {
		t.Cleanup(func() { os.Remove("/etc/mtab") })
	}
}

// An ordinary user mounts through fusermount3, and another user cannot read there.
func TestOrdinaryUser(t *testing.T) {
	letUsersMount(t)
	home, err := os.MkdirTemp("", "batchfs-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	dir, other := filepath.Join(home, "mnt"), filepath.Join(home, "other")
	data := tokens(t, filepath.Join(home, "train.bin"), 60_000, 2)
	for _, path := range []string{dir, other} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{home, dir, other} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	// As after sudo, in a directory that only another user may enter.
	locked := t.TempDir()
	noError(t, os.Chmod(locked, 0o700))
	t.Chdir(locked)
	asNobody := func(args ...string) (string, error) {
		return asUser(t, nobody, nobody, append([]string{"env", "HOME=" + home, "XDG_STATE_HOME=" + home}, args...)...)
	}
	asRoot := func(args ...string) (string, error) {
		stdout, stderr, err := try(t, args...)
		return stdout + stderr, err
	}
	said, err := asNobody(batchfs, "mount", "-d", "--data", filepath.Dir(data), dir)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	keeper, err := strconv.Atoi(regexp.MustCompile(`process (\d+)`).FindStringSubmatch(said)[1])
	noError(t, err)
	if out, err := asNobody("head", "-c", "10", filepath.Join(dir, "train/next")); err != nil || len(out) != 10 {
		t.Errorf("reading as the user that mounted: %v %q", err, out)
	}
	if out, err := asNobody("cmp", filepath.Join(dir, "train/tokens.bin"), data); err != nil {
		t.Errorf("tokens.bin: %v %s", err, out)
	}
	log, err := os.ReadFile(filepath.Join(home, "batchfs/batchfs.log"))
	if err != nil || strings.Count(string(log), "read_ahead_kb") != 1 {
		t.Errorf("%v: the log does not say once that reading ahead is root's to set:\n%s", err, log)
	}
	if _, stderr, err := try(t, "cat", filepath.Join(dir, "README")); err == nil || !strings.Contains(stderr, "Permission denied") {
		t.Errorf("reading as another user: %v %s", err, stderr)
	}
	if command(t, "grep", "-q", "^ *user_allow_other", "/etc/fuse.conf").Run() != nil {
		out, err := asNobody(batchfs, "mount", "--set", "mount.allow_other=true", "--data", home, other)
		if err == nil || !strings.Contains(out, "echo user_allow_other >>/etc/fuse.conf") {
			t.Errorf("mounting for others without root's leave: %v %s", err, out)
		}
	}
	// Whoever dies.
	m := &mounted{dir: dir, cmd: &exec.Cmd{Process: &os.Process{Pid: keeper}}}
	noError(t, syscall.Kill(m.awaitWorker(t), syscall.SIGKILL))
	if out, err := asNobody("head", "-c", "10", filepath.Join(dir, "train/next")); err != nil || len(out) != 10 {
		t.Errorf("reading from the second process: %v %q", err, out)
	}
	if out, err := asNobody(batchfs, "restart", dir); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := asNobody(batchfs, "doctor", "--data", home, dir); err != nil || !strings.Contains(out, "is mounted, served by process ") {
		t.Errorf("%v: %s", err, out)
	}
	noError(t, syscall.Kill(keeper, syscall.SIGKILL))
	await(t, "a dead mount", func() bool {
		out, err := asNobody("ls", dir)
		return err != nil && strings.Contains(out, "not connected")
	})
	if out, err := asNobody(batchfs, "mount", "-d", "--data", home, dir); err != nil {
		t.Errorf("over a dead mount: %v: %s", err, out)
	}
	// Root could read what the user that mounted cannot, and says what that user would.
	if out, err := asRoot(batchfs, "doctor", dir); err != nil || !strings.Contains(out, "ok   mounted train: 60000 tokens") {
		t.Errorf("%v: %s", err, out)
	}
	if err := os.Chmod(data, 0); err != nil {
		t.Fatal(err)
	}
	for who, doctor := range map[string]func(...string) (string, error){"the user": asNobody, "root": asRoot} {
		if out, err := doctor(batchfs, "doctor", dir); err == nil || !strings.Contains(out, "FIX  mounted train: ") || !strings.Contains(out, "permission denied; as its owner, chmod a+r "+data) {
			t.Errorf("%s: %v: %s", who, err, out)
		}
	}
	if out, err := asNobody(batchfs, "unmount", dir); err != nil || isMounted(t, dir) {
		t.Errorf("%v: %s", err, out)
	}
	out, err := asNobody(batchfs, "mount", "-d", "--data", filepath.Dir(data), dir)
	if err == nil || !strings.Contains(out, "train.bin: permission denied") || isMounted(t, dir) {
		t.Errorf("mounting tokens that the user may not read: %v %s", err, out)
	}
}

// The kernel reads files of a mount further ahead than it does by itself.
func TestReadAhead(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("it is root's to set")
	}
	m := mount(t, "--data", filepath.Dir(tokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)))
	var st syscall.Stat_t
	if err := syscall.Stat(m.dir, &st); err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	if err := unix.Access(file, unix.W_OK); err != nil {
		t.Skip(file, err) // as in a container
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "1024\n" {
		t.Errorf("%s: %v, %q", file, err, got)
	}
}

// Only the batchfs that was mounted is unmounted, whatever lies under it or over it.
func TestStackedMounts(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs is root's")
	}
	config, want := small(t, 1)
	dir := t.TempDir()
	under := func(t *testing.T) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for syscall.Unmount(dir, syscall.MNT_DETACH) == nil {
		}
	})
	under(t)
	run(t, batchfs, "mount", "-d", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), dir)
	if got := read(t, "read", filepath.Join(dir, "train/batch/0"))[0]; got != want[0] {
		t.Errorf("batch 0 over a tmpfs is %s, want %s", got, want[0])
	}
	under(t)
	write(t, filepath.Join(dir, "precious"), nil)
	if _, stderr, err := try(t, batchfs, "unmount", dir); err == nil || !strings.Contains(stderr, "no batchfs is mounted there") {
		t.Errorf("unmount of a tmpfs over a batchfs: %v %s", err, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "precious")); err != nil {
		t.Error(err)
	}
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	run(t, batchfs, "unmount", dir)
	if text := run(t, "grep", "-c", dir, "/proc/mounts"); strings.TrimSpace(text) != "1" {
		t.Errorf("%s mounts are left, want the tmpfs", text)
	}
}

// Nobody has to listen to what a mount says for it to serve.
func TestNobodyListens(t *testing.T) {
	needFUSE(t)
	config, want := small(t, 1)
	dir := t.TempDir()
	heard, said, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(batchfs, "mount", "-c", config, dir)
	cmd.Stdout, cmd.Stderr = said, said
	m := &mounted{dir: dir, cmd: cmd, done: make(chan struct{})}
	m.start(t)
	said.Close()
	if _, err := heard.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	heard.Close()
	try(t, "stat", m.path("train/colour=red")) // of which the log would say something
	if got := read(t, "read", m.path("train/next"))[0]; got != want[0] {
		t.Errorf("batch 0 is %s, want %s", got, want[0])
	}
}

// A mount in the foreground ends with its terminal.
func TestTerminalIsClosed(t *testing.T) {
	needFUSE(t)
	config, _ := small(t, 1)
	dir := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	out := run(t, python, "-c", `
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while b"stop with Ctrl-C" not in said:
    said += os.read(terminal, 1000)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))`, batchfs, "mount", "-c", config, dir)
	if out != "0\n" || isMounted(t, dir) {
		t.Errorf("exit status %s, mounted: %v", out, isMounted(t, dir))
	}
}
