// Package exclusive has the tests that no other may run beside: their namespaces keep a copy of every mount, and they let ordinary users mount.
package exclusive

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

func TestMain(m *testing.M) { e2e.MainExclusive(m) }

// letUsersMount lets ordinary users mount until the end of the test.
func letUsersMount(t *testing.T) {
	t.Helper()
	e2e.NeedFUSE(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		e2e.Lack(t, "no fusermount3: apt-get install fuse3")
	}
	e2e.NeedRoot(t, "every other test is this one")
	// On ordinary hosts everybody may open /dev/fuse.
	info := e2e.Must(os.Stat("/dev/fuse"))(t)
	e2e.NoError(t, os.Chmod("/dev/fuse", 0o666))
	t.Cleanup(func() { os.Chmod("/dev/fuse", info.Mode().Perm()) })
	// And there is an /etc/mtab, which fusermount3 asks whose mount it is.
	if os.Symlink("/proc/self/mounts", "/etc/mtab") == nil {
		t.Cleanup(func() { os.Remove("/etc/mtab") })
	}
}

// needNamespaces skips a test where commands cannot have mounts of their own, as in a chroot.
func needNamespaces(t testing.TB) {
	t.Helper()
	e2e.NeedFUSE(t)
	if out, err := e2e.Command(t, "unshare", "--mount", "--propagation", "private", "true").CombinedOutput(); err != nil {
		e2e.Lack(t, "no mount namespaces: %v %s", err, out)
	}
}

// An ordinary user mounts through fusermount3, and another user cannot read there.
func TestOrdinaryUser(t *testing.T) {
	letUsersMount(t)
	home := e2e.Must(os.MkdirTemp("", "batchfs-user-"))(t)
	t.Cleanup(func() { os.RemoveAll(home) })
	dir, other := filepath.Join(home, "mnt"), filepath.Join(home, "other")
	data := e2e.Tokens(t, filepath.Join(home, "train.bin"), 60_000, 2)
	for _, path := range []string{dir, other} {
		e2e.NoError(t, os.Mkdir(path, 0o755))
	}
	for _, path := range []string{home, dir, other} {
		e2e.NoError(t, os.Chown(path, e2e.Nobody, e2e.Nobody))
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	// As after sudo, in a directory that only another user may enter.
	locked := t.TempDir()
	e2e.NoError(t, os.Chmod(locked, 0o700))
	t.Chdir(locked)
	asNobody := func(args ...string) (string, error) {
		return e2e.AsUser(t, e2e.Nobody, e2e.Nobody, append([]string{"env", "HOME=" + home, "XDG_STATE_HOME=" + home}, args...)...)
	}
	says := func(want string, args ...string) {
		t.Helper()
		if out, err := asNobody(args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s, want %q", args, err, out, want)
		}
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if out, err := asNobody(args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s, want %q", args, err, out, want)
		}
	}
	said, err := asNobody(e2e.Batchfs, "mount", "-d", "--data", filepath.Dir(data), dir)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	keeper := e2e.Must(strconv.Atoi(regexp.MustCompile(`process (\d+)`).FindStringSubmatch(said)[1]))(t)
	says("", "cmp", filepath.Join(dir, "train/tokens.bin"), data)
	logs, _ := filepath.Glob(filepath.Join(home, "batchfs", "*.log"))
	e2e.Equal(t, "logs of one mount", len(logs), 1)
	log, err := os.ReadFile(logs[0])
	if err != nil || strings.Count(string(log), "read_ahead_kb") != 1 {
		t.Errorf("%v: the log does not say once that reading ahead is root's to set:\n%s", err, log)
	}
	e2e.Fails(t, "Permission denied", "cat", filepath.Join(dir, "README"))
	if e2e.Command(t, "grep", "-q", "^ *user_allow_other", "/etc/fuse.conf").Run() != nil {
		fails("user_allow_other", e2e.Batchfs, "mount", "--set", "mount.allow_other=true", "--data", home, other)
	}
	// Whoever dies.
	m := &e2e.Mounted{Dir: dir, Cmd: &exec.Cmd{Process: &os.Process{Pid: keeper}}}
	e2e.NoError(t, syscall.Kill(m.AwaitWorker(t), syscall.SIGKILL))
	says("", "head", "-c", "10", filepath.Join(dir, "train/next"))
	says("", e2e.Batchfs, "restart", dir)
	says("is mounted, served by process ", e2e.Batchfs, "doctor", "--data", home, dir)
	e2e.NoError(t, syscall.Kill(keeper, syscall.SIGKILL))
	e2e.Await(t, "a dead mount", func() bool {
		out, err := asNobody("ls", dir)
		return err != nil && strings.Contains(out, "not connected")
	})
	says("", e2e.Batchfs, "mount", "-d", "--data", home, dir) // over a dead mount
	// Root could read what the user that mounted cannot, and says what that user would.
	e2e.Says(t, "ok   mounted train: 60000 tokens", e2e.Batchfs, "doctor", dir)
	e2e.NoError(t, os.Chmod(data, 0))
	const denied = "permission denied; as its owner, chmod a+r "
	fails(denied+data, e2e.Batchfs, "doctor", dir)
	if out, _, err := e2e.Try(t, e2e.Batchfs, "doctor", dir); err == nil || !strings.Contains(out, "FIX  mounted train: ") || !strings.Contains(out, denied) {
		t.Errorf("as root: %v: %s", err, out)
	}
	says("", e2e.Batchfs, "unmount", dir)
	fails("train.bin: permission denied", e2e.Batchfs, "mount", "-d", "--data", home, dir)
	e2e.NotMounted(t, dir)
}
