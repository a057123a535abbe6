package e2e

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// LetUsersMount lets ordinary users mount until the end of the test.
func LetUsersMount(t *testing.T) {
	t.Helper()
	NeedFUSE(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		Lack(t, "no fusermount3: apt-get install fuse3")
	}
	NeedRoot(t, "every other test is this one")
	// On ordinary hosts everybody may open /dev/fuse.
	info, err := os.Stat("/dev/fuse")
	NoError(t, err)
	NoError(t, os.Chmod("/dev/fuse", 0o666))
	t.Cleanup(func() { os.Chmod("/dev/fuse", info.Mode().Perm()) })
	// And there is an /etc/mtab, which fusermount3 asks whose mount it is.
	if os.Symlink("/proc/self/mounts", "/etc/mtab") == nil {
		t.Cleanup(func() { os.Remove("/etc/mtab") })
	}
}

// NeedNamespaces skips a test where commands cannot have mounts of their own, as in a chroot.
func NeedNamespaces(t testing.TB) {
	t.Helper()
	NeedFUSE(t)
	if out, err := Command(t, "unshare", "--mount", "--propagation", "private", "true").CombinedOutput(); err != nil {
		Lack(t, "no mount namespaces: %v %s", err, out)
	}
}

const Nobody = 65534

// AsUser runs a command as another user, of one group, and returns all that it printed.
func AsUser(t testing.TB, uid, gid uint32, args ...string) (string, error) {
	cmd := Command(t, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
