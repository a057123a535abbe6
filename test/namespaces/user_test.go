// Package namespaces holds the tests that make mount namespaces, or that change who may mount in
// the namespace of this package. The namespaces that they make hold copies of all mounts of this
// package, as long as they last or until they detach them.
package namespaces

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// letUsersMount lets ordinary users mount until the test ends. It changes files by mounting over
// them, which other tests do not see.
func letUsersMount(t *testing.T) {
	t.Helper()
	e2e.NeedFUSE(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		e2e.SkipOrFail(t, "no fusermount3: apt-get install fuse3")
	}
	e2e.NeedRoot(t, "other users run every test as an ordinary user")
	mount := func(source, target, fstype string, flags uintptr) {
		t.Helper()
		e2e.NoError(t, syscall.Mount(source, target, fstype, flags, ""))
		t.Cleanup(func() { syscall.Unmount(target, syscall.MNT_DETACH) })
	}
	// On ordinary hosts, every user may open /dev/fuse.
	if info := e2e.Must(os.Stat("/dev/fuse"))(t); info.Mode().Perm() != 0o666 {
		dev := t.TempDir()
		mount("tmpfs", dev, "tmpfs", 0) // devices may not work in a temporary directory
		e2e.NoError(t, syscall.Mknod(dev+"/fuse", syscall.S_IFCHR, int(info.Sys().(*syscall.Stat_t).Rdev)))
		e2e.NoError(t, os.Chmod(dev+"/fuse", 0o666))
		mount(dev+"/fuse", "/dev/fuse", "", syscall.MS_BIND)
	}
	// fusermount3 reads /etc/mtab to find who mounted a directory.
	if _, err := os.Stat("/etc/mtab"); err != nil {
		etc := filepath.Join(t.TempDir(), "etc")
		e2e.Run(t, "cp", "-a", "/etc", etc)
		os.Remove(etc + "/mtab") // a link to nothing
		e2e.NoError(t, os.Symlink("/proc/self/mounts", etc+"/mtab"))
		mount(etc, "/etc", "", syscall.MS_BIND)
	}
}

// needNamespaces skips a test if commands cannot have mounts of their own, as in a chroot.
func needNamespaces(t testing.TB) {
	t.Helper()
	e2e.NeedFUSE(t)
	if out, err := e2e.Command(t, "unshare", "--mount", "--propagation", "private", "true").CombinedOutput(); err != nil {
		e2e.SkipOrFail(t, "no mount namespaces: %v %s", err, out)
	}
}

// An ordinary user mounts through fusermount3, and other users cannot read the mount.
func TestOrdinaryUser(t *testing.T) {
	letUsersMount(t)
	home := e2e.Must(os.MkdirTemp("", "batchfs-user-"))(t)
	t.Cleanup(func() { os.RemoveAll(home) })
	e2e.PrintLogsOfFailure(t, home)
	dir, other := filepath.Join(home, "mnt"), filepath.Join(home, "other")
	data := e2e.WriteTokens(t, filepath.Join(home, "train.bin"), 60_000, 2)
	for _, path := range []string{dir, other} {
		e2e.NoError(t, os.Mkdir(path, 0o755))
	}
	for _, path := range []string{home, dir, other} {
		e2e.NoError(t, os.Chown(path, e2e.Nobody, e2e.Nobody))
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	// Only another user may enter the working directory, as after sudo.
	locked := t.TempDir()
	e2e.NoError(t, os.Chmod(locked, 0o700))
	t.Chdir(locked)
	asNobody := func(args ...string) (string, error) {
		return e2e.RunAs(t, e2e.Nobody, e2e.Nobody, append([]string{"env", "HOME=" + home, "XDG_STATE_HOME=" + home}, args...)...)
	}
	checkOutput := func(want string, args ...string) {
		t.Helper()
		if out, err := asNobody(args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s as an ordinary user: error %v, output %s, want %q", args, err, out, want)
		}
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if out, err := asNobody(args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s as an ordinary user: error %v, output %s, want an error with %q", args, err, out, want)
		}
	}
	// So services and containers run without new privileges.
	fails("because no_new_privs is set", "setpriv", "--no-new-privs", e2e.Batchfs, "mount", "--data", home, other)
	fails("because no_new_privs is set", "setpriv", "--no-new-privs", e2e.Batchfs, "doctor", other)
	closed := filepath.Join(home, "closed")
	e2e.NoError(t, os.Mkdir(closed, 0o700))
	fails("FIX  configuration: open "+closed+": permission denied; as its owner, chmod a+rx "+closed+" and ", e2e.Batchfs, "doctor", "--data", closed)
	// As after sudo mkdir.
	e2e.NoError(t, os.Chown(other, 0, 0))
	fails(other+": fusermount3 mounts only on directories that the user may write to; choose another, or as root, run: chown 65534 "+other, e2e.Batchfs, "mount", "--data", home, other)
	fails("as root, run: chown 65534 "+other, e2e.Batchfs, "doctor", other)
	e2e.NoError(t, os.Chown(other, e2e.Nobody, e2e.Nobody))
	output, err := asNobody(e2e.Batchfs, "mount", "-d", "--data", filepath.Dir(data), dir)
	if err != nil {
		t.Fatalf("mount -d as an ordinary user: %v: %s", err, output)
	}
	supervisor := e2e.Must(strconv.Atoi(regexp.MustCompile(`process (\d+)`).FindStringSubmatch(output)[1]))(t)
	checkOutput("", "cmp", filepath.Join(dir, "train/tokens.bin"), data)
	logs, _ := filepath.Glob(filepath.Join(home, "batchfs", "*.log"))
	e2e.Equal(t, "log files of one mount", len(logs), 1)
	log, err := os.ReadFile(logs[0])
	if err != nil || strings.Count(string(log), "read_ahead_kb") != 1 {
		t.Errorf("error %v; the log does not say once that only root can set read_ahead_kb:\n%s", err, log)
	}
	e2e.CheckFails(t, "Permission denied", "cat", filepath.Join(dir, "README"))
	if e2e.Command(t, "grep", "-q", "^ *user_allow_other", "/etc/fuse.conf").Run() != nil {
		fails("user_allow_other", e2e.Batchfs, "mount", "--set", "mount.allow_other=true", "--data", home, other)
	}
	// A worker that dies is replaced, and so is a dead mount.
	m := &e2e.Mounted{Dir: dir, Cmd: &exec.Cmd{Process: &os.Process{Pid: supervisor}}}
	e2e.NoError(t, syscall.Kill(m.AwaitWorker(t), syscall.SIGKILL))
	checkOutput("", "head", "-c", "10", filepath.Join(dir, "train/next"))
	checkOutput("", e2e.Batchfs, "restart", dir)
	checkOutput("is mounted, served by process ", e2e.Batchfs, "doctor", "--data", home, dir)
	e2e.NoError(t, syscall.Kill(supervisor, syscall.SIGKILL))
	e2e.Await(t, "a dead mount", func() (any, bool) {
		out, err := asNobody("ls", dir)
		return out, err != nil && strings.Contains(out, "not connected")
	})
	checkOutput("", e2e.Batchfs, "mount", "-d", "--data", home, dir) // over a dead mount
	// The doctor reports what the user who mounted can read, even if root can read more.
	e2e.CheckOutput(t, "ok   mounted train: 60000 tokens", e2e.Batchfs, "doctor", dir)
	e2e.NoError(t, os.Chmod(data, 0))
	const denied = "permission denied; as its owner, chmod a+r "
	fails(denied+data, e2e.Batchfs, "doctor", dir)
	if out, _, err := e2e.Try(t, e2e.Batchfs, "doctor", dir); err == nil || !strings.Contains(out, "FIX  mounted train: ") || !strings.Contains(out, denied) {
		t.Errorf("the doctor as root: error %v, output %s, want that the mounted split cannot be read", err, out)
	}
	checkOutput("", e2e.Batchfs, "unmount", dir)
	fails("train.bin: permission denied", e2e.Batchfs, "mount", "-d", "--data", home, dir)
	e2e.NotMounted(t, dir)
}
