package namespaces

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// If fusermount3 may not enter the mountpoint or a directory above it, so that it could not
// unmount, it is not asked to mount. Here it lacks the capabilities with which root enters any
// directory; on NFS, root_squash has the same effect.
func TestUnreachableMountpoint(t *testing.T) {
	letUsersMount(t)
	home := e2e.PublicDir(t)
	e2e.PrintLogsOfFailure(t, home)
	data := filepath.Dir(e2e.WriteTokens(t, filepath.Join(home, "train.bin"), 60_000, 2))
	open, closed := filepath.Join(home, "open", "mnt"), filepath.Join(home, "closed", "mnt")
	for _, dir := range []string{open, closed} {
		e2e.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	e2e.Run(t, "chown", "-R", "65534:65534", home)
	e2e.NoError(t, os.Chmod(filepath.Dir(closed), 0o700))
	runProgram := func(args ...string) (string, error) {
		return e2e.RunAs(t, 0, 0, append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-dac_override,-dac_read_search",
			"env", "HOME=" + home, "XDG_STATE_HOME=" + home}, args...)...)
	}
	run := func(args ...string) (string, error) { return runProgram(append([]string{e2e.Batchfs}, args...)...) }
	if out, err := run("mount", "-d", "--data", data, open); err != nil {
		t.Errorf("a directory that everyone may enter: %v: %s", err, out)
	} else if out, err := run("unmount", open); err != nil {
		t.Errorf("unmount: %v: %s", err, out)
	}
	const untilReady = `mkfifo ready && { "$@" --parent $$ --status-fd 3 3>ready & } && grep '^{"kind":"ready"' ready`
	made := filepath.Join(home, "made")
	t.Cleanup(func() { syscall.Unmount(made, syscall.MNT_DETACH) })
	if out, err := runProgram("sh", "-c", "cd $HOME && "+untilReady, "sh", e2e.Batchfs, "mount", "--make-mountpoint", "--data", data, made); err != nil {
		t.Errorf("a mountpoint that the program makes: %v: %s", err, out)
	}
	e2e.Await(t, "the mountpoint that the program made to be removed", func() (any, bool) {
		_, err := os.Lstat(made)
		return err, os.IsNotExist(err)
	})
	e2e.NoError(t, os.Chmod(open, 0o700))
	if out, err := run("mount", "-d", "--data", data, open); err == nil || !strings.Contains(out, "may be unable to enter "+open+" (mode 0700") {
		t.Errorf("a mountpoint that is closed itself: %v: %s", err, out)
	}
	for _, args := range [][]string{{"mount", "-d", "--data", data, closed}, {"mount", "--data", data, closed}, {"doctor", closed}} {
		out, err := run(args...)
		if want := "may be unable to enter " + filepath.Dir(closed) + " (mode 0700"; err == nil || !strings.Contains(out, want) || !strings.Contains(out, "/tmp/batchfs-65534") {
			t.Errorf("%s: error %v, output %s, want %q", args, err, out, want)
		}
		e2e.NotMounted(t, closed)
	}
}

// Commands that cannot tell whether a batchfs is mounted at a path say why, not that none is.
func TestMountsUnknown(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	e2e.NeedRoot(t, "only root may hide /proc")
	split := filepath.Join(t.TempDir(), "closed/mnt/train")
	e2e.NoError(t, os.MkdirAll(split, 0o700))
	for want, prefix := range map[string][]string{
		"no such file or directory; as root, run: mount -t proc proc /proc": {"unshare", "-m", "sh", "-c", `mount -t tmpfs none /proc && exec "$@"`, "sh"},
		": permission denied": {"setpriv", "--reuid=65534", "--bounding-set=-all"},
	} {
		for _, args := range [][]string{{"why", split}, {"unmount", filepath.Dir(split)}, {"inspect", split, "1"}, {"seek", split, "1"}} {
			e2e.CheckFails(t, want, slices.Concat(prefix, []string{e2e.Batchfs}, args)...)
		}
	}
}
