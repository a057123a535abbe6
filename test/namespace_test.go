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
)

// inNamespace starts a process with a mount namespace of its own, which holds a mount whatever is unmounted here. It ends with the
// test.
func inNamespace(t *testing.T, dir string) *os.Process {
	t.Helper()
	// It lets go of all other mounts of tests, which end meanwhile.
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		`awk -v dir="$0" '$5 != dir && / - fuse/ {print $5}' /proc/self/mountinfo | xargs -r umount -l; echo ready; exec sleep infinity`, dir)
	out, err := cmd.StdoutPipe()
	noError(t, err)
	noError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	defer answersSoon(t, cmd)()
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	noError(t, err)
	return cmd.Process
}

// needNamespaces skips a test where commands cannot have mounts of their own, as in a chroot.
func needNamespaces(t testing.TB) {
	t.Helper()
	needFUSE(t)
	if out, err := command(t, "unshare", "--mount", "--propagation", "private", "true").CombinedOutput(); err != nil {
		lack(t, "no mount namespaces: %v %s", err, out)
	}
}

// From a PID namespace of its own a command sees other processes under the ids of a mount's. It says that it cannot tell, and leaves
// the mount alone.
func TestOtherPIDNamespace(t *testing.T) {
	needNamespaces(t)
	if os.Geteuid() != 0 {
		t.Skip("PID namespaces are root's")
	}
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	there := func(args ...string) (string, error) {
		stdout, stderr, err := try(t, append([]string{"unshare", "--pid", "--fork", "--mount-proc", batchfs}, args...)...)
		return stdout + stderr, err
	}
	const why = "is in another PID namespace"
	if said, err := there("doctor", m.dir); err != nil || !strings.Contains(said, why) || strings.Contains(said, "dead") {
		t.Errorf("doctor: %v, %s", err, said)
	}
	for _, args := range [][]string{{"unmount", m.dir}, {"unmount", "--force", m.dir}, {"restart", m.dir}, {"seek", m.path("train"), "7"}, {"inspect", m.path("train"), "7"}, {"cat", m.path("train")}} {
		if said, err := there(args...); err == nil || !strings.Contains(said, why) {
			t.Errorf("%s: %v, %s", args, err, said)
		}
	}
	if said, err := there("mount", "-c", config, m.dir); err == nil || !strings.Contains(said, "already mounted") {
		t.Errorf("mount: %v, %s", err, said)
	}
	if c := m.cursor(t, "train"); c != "0" {
		t.Errorf("the cursor is %s", c)
	}
	run(t, plainBatchfs, "restart", m.dir)
}

// Where /proc is that of another PID namespace, other processes have the ids of this one and its workers there. Nothing is mounted, and
// no mount is touched.
func TestForeignProc(t *testing.T) {
	needNamespaces(t)
	if os.Geteuid() != 0 {
		t.Skip("PID namespaces are root's")
	}
	config, _ := small(t, 1)
	there := func(args ...string) (string, error) {
		stdout, stderr, err := try(t, append([]string{"unshare", "--pid", "--fork", batchfs}, args...)...)
		return stdout + stderr, err
	}
	dir := t.TempDir()
	if said, err := there("mount", "-c", config, dir); err == nil || !strings.Contains(said, "mount -t proc proc /proc") || isMounted(t, dir) {
		t.Errorf("mount: %v, %s", err, said)
	}
	m := mount(t, "-c", config)
	const why = "is in another PID namespace"
	if said, err := there("doctor", m.dir); err != nil || !strings.Contains(said, why) || strings.Contains(said, "dead") {
		t.Errorf("doctor: %v, %s", err, said)
	}
	for _, args := range [][]string{{"unmount", m.dir}, {"unmount", "--force", m.dir}, {"restart", m.dir}, {"seek", m.path("train"), "7"}, {"cat", m.path("train")}} {
		if said, err := there(args...); err == nil || !strings.Contains(said, why) {
			t.Errorf("%s: %v, %s", args, err, said)
		}
	}
	if c := m.cursor(t, "train"); c != "0" {
		t.Errorf("the cursor is %s", c)
	}

	// A mount that is made in a namespace of its own is found there with its /proc, and with no other.
	inside := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(inside, syscall.MNT_DETACH) })
	out := run(t, "unshare", "--pid", "--fork", "--mount-proc", "--propagation", "private", "sh", "-ec", `
		"$0" mount -d -c "$1" --log "$3" "$2" >&2
		cat "$2/train/cursor"
		"$0" doctor "$2" | grep -c "is mounted, served by process"
		"$0" restart "$2" >&2
		umount /proc
		"$0" unmount --force "$2" 2>&1 | grep -c "`+why+`"
		cat "$2/train/cursor"
		mount -t proc proc /proc
		"$0" unmount "$2" >&2`, batchfs, config, inside, filepath.Join(t.TempDir(), "log"))
	if strings.Join(strings.Fields(out), " ") != "0 1 1 0" {
		t.Errorf("in a namespace of its own: %s", out)
	}
}

// A mount whose PID namespace is gone is dead, also for those who never were in it, and they can free it.
func TestDeadElsewhere(t *testing.T) {
	needNamespaces(t)
	if os.Geteuid() != 0 {
		t.Skip("PID namespaces are root's")
	}
	config, want := small(t, 1)
	shared := t.TempDir()
	dir := filepath.Join(shared, "mnt")
	noError(t, syscall.Mount(shared, shared, "", syscall.MS_BIND, ""))
	t.Cleanup(func() {
		syscall.Unmount(dir, syscall.MNT_DETACH)
		noError(t, syscall.Unmount(shared, syscall.MNT_DETACH))
	})
	noError(t, syscall.Mount("", shared, "", syscall.MS_SHARED, ""))
	noError(t, os.Mkdir(dir, 0o755))
	mountThere := func() {
		t.Helper()
		run(t, "unshare", "--pid", "--fork", "--mount", "--propagation", "unchanged", "sh", "-ec", `
			mount --make-private /proc
			mount -t proc proc /proc
			"$0" mount -d -c "$1" --log "$3" "$2"`, batchfs, config, dir, filepath.Join(t.TempDir(), "log"))
		await(t, "a dead mount", func() bool {
			_, stderr, _ := try(t, "stat", "-f", dir)
			return strings.Contains(stderr, "not connected") || strings.Contains(stderr, "connection abort")
		})
	}
	mountThere()
	if out, _, err := try(t, plainBatchfs, "doctor", dir); err == nil || !strings.Contains(out, "is dead: ") {
		t.Errorf("doctor: %v %s", err, out)
	}
	run(t, plainBatchfs, "unmount", dir)
	if isMounted(t, dir) {
		t.Error("still mounted")
	}
	mountThere()
	m := mountAt(t, dir, exec.Command(batchfs), "-c", config)
	if got := read(t, "read", m.path("train/next"))[0]; got != want[0] {
		t.Errorf("batch 0 is %s, want %s", got, want[0])
	}
}

// unmount says where a filesystem lives on, and --force ends it there too.
func TestUnmountElsewhere(t *testing.T) {
	needNamespaces(t)
	if os.Geteuid() != 0 {
		t.Skip("mount namespaces are root's")
	}
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	other := t.TempDir()
	noError(t, syscall.Mount(m.dir, other, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { syscall.Unmount(other, syscall.MNT_DETACH) })
	holder := inNamespace(t, m.dir)
	_, stderr, err := try(t, batchfs, "unmount", m.dir)
	for _, want := range []string{
		m.dir + " is unmounted here, and lives on", fmt.Sprintf("at %s in the mount namespace of process %d (sleep)\n", m.dir, holder.Pid),
		fmt.Sprintf("at %s\n", other), fmt.Sprintf("kill %d", m.cmd.Process.Pid),
	} {
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%v: %q is not in\n%s", err, want, stderr)
		}
	}
	if isMounted(t, m.dir) || m.ended() {
		t.Errorf("mounted: %v, ended: %v", isMounted(t, m.dir), m.ended())
	}
	if got := read(t, "read", filepath.Join(other, "train/next")); len(got) != 1 {
		t.Errorf("read there: %s", got)
	}
	noError(t, syscall.Unmount(other, 0))
	noError(t, holder.Kill())
	m.awaitEnd(t)

	m = mount(t, "-c", config)
	inNamespace(t, m.dir)
	run(t, batchfs, "unmount", "--force", m.dir)
	m.awaitEnd(t)
}
