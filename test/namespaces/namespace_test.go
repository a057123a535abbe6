package namespaces

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// detachOthers is a shell command that unmounts all FUSE file systems but the one on $0 in its own
// mount namespace, so that they can end while the namespace exists.
const detachOthers = `awk -v dir="$0" '$5 != dir && / - fuse/ {print $5}' /proc/self/mountinfo | xargs -r umount -l; `

// hideDevices is a shell command that leaves nothing in /dev but /dev/shm, where a test may have
// files.
const hideDevices = "(cd /dev/shm && mount -t tmpfs dev /dev && mkdir /dev/shm && mount --no-canonicalize --bind . /dev/shm)"

// startInNamespace starts a process in its own mount namespace. There, a mount on dir stays when it
// is unmounted here.
func startInNamespace(t *testing.T, dir string) *os.Process {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", detachOthers+"echo ready; exec sleep infinity", dir)
	e2e.StartClient(t, cmd).AwaitReady(t)
	return cmd.Process
}

// If the test process cannot have its own mount namespace, as in a chroot, none of its threads
// stays in one, where copies of the mounts of other tests could not be unmounted.
func TestThreadsShareANamespace(t *testing.T) {
	own := e2e.Must(os.Readlink("/proc/thread-self/ns/mnt"))(t)
	for _, thread := range e2e.Must(os.ReadDir("/proc/self/task"))(t) {
		// A thread may end meanwhile.
		if other, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/mnt"); err == nil && other != own {
			t.Errorf("thread %s is in namespace %s, want %s", thread.Name(), other, own)
		}
	}
}

// In another PID namespace, a mount's process ids belong to other processes, even if /proc is not
// remounted. Commands there report that the mount is in another PID namespace, and leave it alone.
func TestOtherPIDNamespace(t *testing.T) {
	needNamespaces(t)
	e2e.NeedRoot(t, "only root may make PID namespaces")
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	const why = "is in another PID namespace"
	for _, proc := range [][]string{nil, {"--mount-proc"}} {
		checkInside := func(want string, fails bool, args ...string) {
			t.Helper()
			stdout, stderr, err := e2e.Try(t, slices.Concat([]string{"unshare", "--pid", "--fork"}, proc, []string{e2e.Batchfs}, args)...)
			if output := stdout + stderr; !strings.Contains(output, want) || (err != nil) != fails || strings.Contains(output, "dead") {
				t.Errorf("unshare %s batchfs %s: error %v, want one: %v, output %s, want %q and not dead", proc, args, err, fails, output, want)
			}
		}
		checkInside(why, false, "doctor", m.Dir)
		for _, args := range [][]string{
			{"unmount", m.Dir}, {"unmount", "--force", m.Dir}, {"restart", m.Dir}, {"seek", m.Path("train"), "7"}, {"inspect", m.Path("train"), "7"}, {"cat", m.Path("train")},
		} {
			checkInside(why, true, args...)
		}
		if dir := t.TempDir(); proc == nil { // nothing can be mounted without /proc
			checkInside("mount -t proc proc /proc", true, "mount", "-c", config, dir)
			e2e.CheckFails(t, "batchfs needs /proc: mount -t proc proc /proc", "unshare", "--mount", "--propagation", "private", "sh", "-c",
				`umount -l /proc && exec "$@"`, "sh", e2e.Batchfs, "mount", "-c", config, dir)
			e2e.Equal(t, "mounted", e2e.IsMounted(t, dir), false)
		} else {
			checkInside("already mounted", true, "mount", "-c", config, m.Dir)
		}
	}
	e2e.Equal(t, "the cursor", m.Cursor(t, "train"), "0")
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)

	// A mount that was made in a namespace is found there only while the namespace's own /proc is
	// mounted. /proc is detached, because it may be in use.
	inside := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(inside, syscall.MNT_DETACH) })
	out := e2e.Run(t, "unshare", "--pid", "--fork", "--mount-proc", "--propagation", "private", "sh", "-ec", `
		"$0" mount -d -c "$1" --log "$3" "$2" >&2
		cat "$2/train/cursor"
		"$0" doctor "$2" | grep -c "is mounted, served by process"
		"$0" restart "$2" >&2
		umount -l /proc
		"$0" unmount --force "$2" 2>&1 | grep -c "`+why+`"
		cat "$2/train/cursor"
		mount -t proc proc /proc
		"$0" unmount "$2" >&2`, e2e.Batchfs, config, inside, filepath.Join(t.TempDir(), "log"))
	e2e.Equal(t, "in a namespace of its own", strings.Join(strings.Fields(out), " "), "0 1 1 0")
}

// Where /proc hides the processes of other users, a mount of another user is not reported as dead.
func TestMountOfAnotherUser(t *testing.T) {
	needNamespaces(t)
	e2e.NeedRoot(t, "only root may mount /proc")
	config, _ := e2e.SmallConfig(t, 1)
	above := e2e.PublicDir(t)
	dir := filepath.Join(above, "mnt")
	e2e.NoError(t, os.Mkdir(dir, 0o755))
	m := e2e.MountAt(t, dir, exec.Command(e2e.Batchfs), "-c", config, "--set", "mount.allow_other=true")
	for _, hidepid := range []string{"hidepid=1", "hidepid=2"} {
		for want, args := range map[string][]string{
			"is mounted; only user 0, who mounted it, and root": {"doctor", "--mounted", m.Dir},
			m.Dir + "  closed ":                {"list"},
			"train/batch/0 can be read":        {"why", m.Path("train/batch/0")},
			"only root and the user who mount": {"restart", m.Dir},
			"user 0, who mounted it, and root": {"unmount", m.Dir},
		} {
			out, err := e2e.Command(t, "unshare", slices.Concat([]string{"--mount", "--propagation", "private", "sh", "-c",
				`mount -t proc -o "$0" proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`, hidepid, e2e.Batchfs}, args)...).CombinedOutput()
			if !strings.Contains(string(out), want) || strings.Contains(string(out), "dead") {
				t.Errorf("batchfs %s with %s: error %v, output %s, want %q and not dead", args, hidepid, err, out, want)
			}
		}
	}
	// Nor is allow_other or mode blamed if a directory above the mountpoint is closed.
	e2e.NoError(t, os.Chmod(above, 0o700))
	for _, args := range [][]string{{"why", m.Path("train/batch/0")}, {"doctor", dir}} {
		out, err := e2e.RunAs(t, e2e.Nobody, e2e.Nobody, append([]string{e2e.Batchfs}, args...)...)
		if want := "is mounted, but this user may not enter " + above + "; as its owner, run: chmod a+x "; err == nil || !strings.Contains(out, want) {
			t.Errorf("batchfs %s: error %v, output %s, want %q", args, err, out, want)
		}
	}
}

// A mount whose PID namespace is gone is dead, and processes outside of it can unmount it.
func TestDeadElsewhere(t *testing.T) {
	needNamespaces(t)
	e2e.NeedRoot(t, "only root may make PID namespaces")
	config, want := e2e.SmallConfig(t, 1)
	shared := t.TempDir()
	dir := filepath.Join(shared, "mnt")
	e2e.NoError(t, syscall.Mount(shared, shared, "", syscall.MS_BIND, ""))
	t.Cleanup(func() {
		syscall.Unmount(dir, syscall.MNT_DETACH)
		e2e.NoError(t, syscall.Unmount(shared, syscall.MNT_DETACH))
	})
	e2e.NoError(t, syscall.Mount("", shared, "", syscall.MS_SHARED, ""))
	e2e.NoError(t, os.Mkdir(dir, 0o755))
	mountThere := func() {
		t.Helper()
		e2e.Run(t, "unshare", "--pid", "--fork", "--mount", "--propagation", "unchanged", "sh", "-ec", `
			mount --make-private /proc
			mount -t proc proc /proc
			"$0" mount -d -c "$1" --log "$3" "$2"`, e2e.Batchfs, config, dir, filepath.Join(t.TempDir(), "log"))
		e2e.AwaitDead(t, dir)
	}
	mountThere()
	if out, _, err := e2e.Try(t, e2e.PlainBatchfs, "doctor", dir); err == nil || !strings.Contains(out, "is dead: ") {
		t.Errorf("doctor: error %v, output %s\nwant that the mount is dead", err, out)
	}
	e2e.Run(t, e2e.PlainBatchfs, "unmount", dir)
	e2e.NotMounted(t, dir)
	mountThere()
	m := e2e.MountAt(t, dir, exec.Command(e2e.Batchfs), "-c", config)
	e2e.Equal(t, "batch 0", e2e.Read(t, "read", m.Path("train/next"))[0], want[0])
}

// If the file system is mounted elsewhere too, unmount reports that, and how to find the other
// mounts. --force ends it everywhere. unmount waits ten seconds for the other mounts to end.
func TestUnmountElsewhere(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	e2e.NeedRoot(t, "only root may make mount namespaces")
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	other := t.TempDir()
	e2e.NoError(t, syscall.Mount(m.Dir, other, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { syscall.Unmount(other, syscall.MNT_DETACH) })
	holder := startInNamespace(t, m.Dir)
	_, stderr, err := e2e.Try(t, e2e.Batchfs, "unmount", m.Dir)
	for _, want := range []string{
		m.Dir + " is unmounted here", "/proc/[0-9]*/mountinfo", fmt.Sprintf("kill %d\n", m.Cmd.Process.Pid),
	} {
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("unmount: error %v, want %q in\n%s", err, want, stderr)
		}
	}
	if e2e.IsMounted(t, m.Dir) || m.Ended() {
		t.Errorf("after unmount, mounted: %v, ended: %v, want false and false", e2e.IsMounted(t, m.Dir), m.Ended())
	}
	e2e.Read(t, "read", filepath.Join(other, "train/next"))
	e2e.NoError(t, syscall.Unmount(other, 0))
	e2e.NoError(t, holder.Kill())
	m.AwaitEnd(t)

	m = e2e.Mount(t, "-c", config)
	startInNamespace(t, m.Dir)
	e2e.Run(t, e2e.Batchfs, "unmount", "--force", m.Dir)
	m.AwaitEnd(t)
}

// Without /dev/fuse, the demo trains from a pipe, for at least 600 steps, also where the locale's
// encoding lacks the bars that it draws.
func TestDemoWithoutFUSE(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	e2e.NeedRoot(t, "only root can hide /dev/fuse")
	dir := t.TempDir()
	e2e.Run(t, "cp", "-r", "../examples", "../.ci", "../python", dir)
	e2e.NoError(t, os.Symlink(e2e.Batchfs, filepath.Join(dir, "batchfs")))
	out := e2e.RunJob(t, "unshare", "--mount", "--propagation", "private", "sh", "-c",
		detachOthers+hideDevices+" && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && PYTHONIOENCODING=ascii "+filepath.Join(dir, "examples/demo")+" --seconds 1")
	e2e.Contains(t, "the output of the demo", out, "the model writes:")
}
