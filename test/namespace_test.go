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
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	noError(t, err)
	return cmd.Process
}

// From a PID namespace of its own a command sees other processes under the ids of a mount's. It says that it cannot tell, and leaves
// the mount alone.
func TestOtherPIDNamespace(t *testing.T) {
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
	for _, args := range [][]string{{"unmount", m.dir}, {"unmount", "--force", m.dir}, {"restart", m.dir}, {"seek", m.path("train"), "7"}, {"inspect", m.path("train"), "7"}} {
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
}

// unmount says where a filesystem lives on, and --force ends it there too.
func TestUnmountElsewhere(t *testing.T) {
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
