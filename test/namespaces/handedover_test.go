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

// mountFor makes a mount without serving it, as a driver does, and returns the descriptor to hand
// over.
func mountFor(t *testing.T, dir string) *os.File {
	t.Helper()
	e2e.NeedFUSE(t)
	e2e.NeedRoot(t, "only root can mount without a helper")
	device := e2e.Must(os.OpenFile("/dev/fuse", os.O_RDWR, 0))(t)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", device.Fd())
	e2e.NoError(t, syscall.Mount("driver", dir, "fuse.driver", syscall.MS_RDONLY|syscall.MS_NOSUID|syscall.MS_NODEV, options))
	t.Cleanup(func() {
		device.Close()
		syscall.Unmount(dir, syscall.MNT_DETACH)
	})
	return device
}

// unprivileged unmounts $0 and all other FUSE file systems in its own namespace, and runs a command
// without privileges.
const unprivileged = detachOthers + `umount -l "$0"; exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set -all --inh-caps -all "$@"`

// handOver starts a batchfs without privileges. It serves a mount that is not in its mount
// namespace.
func handOver(t *testing.T, device *os.File, dir string, args ...string) *e2e.Mounted {
	t.Helper()
	words := []string{"--mount", "--propagation", "private", "sh", "-c", unprivileged, dir, e2e.Batchfs, "mount", "--fd", "3"}
	cmd := exec.Command("unshare", slices.Concat(words, args, []string{dir})...)
	cmd.ExtraFiles = []*os.File{device}
	m := e2e.StartMount(t, dir, cmd)
	device.Close()
	m.AwaitReady(t)
	return m
}

// A process that may not mount serves what another one mounted, even if its worker is killed.
// Commands find the mount. When it ends, readers get errors, and whoever made it must unmount it.
func TestHandedOver(t *testing.T) {
	needNamespaces(t)
	dir := t.TempDir()
	e2e.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	config, want := e2e.SmallConfig(t, 9)
	m := handOver(t, mountFor(t, dir), dir, "-c", config, "--set", "mount.grace=0s")
	open := e2e.Must(os.Open(m.Path("train/batch/1")))(t)
	defer open.Close()
	for k, batch := range want[:5] {
		e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Read(t, "read", m.Path("train/next"))[0], batch)
		m.KillServing(t, syscall.SIGKILL)
	}

	nobody := func(args ...string) string {
		t.Helper()
		out, err := e2e.RunAs(t, e2e.Nobody, e2e.Nobody, append([]string{e2e.Batchfs}, args...)...)
		if err != nil {
			t.Errorf("batchfs %s as an ordinary user: error %v, %s", args, err, out)
		}
		return out
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"restart", dir}, "serves " + dir},
		{[]string{"seek", m.Path("train"), "7"}, "is 7, was 5"},
		{[]string{"doctor", dir}, "ok   mountpoint: " + dir + " is mounted, served by process "},
		{[]string{"inspect", m.Path("train"), "7"}, "batch 7"},
	} {
		if output := nobody(test.args...); !strings.Contains(output, test.want) {
			t.Errorf("batchfs %s printed %s, want %q", test.args, output, test.want)
		}
	}
	// Commands also work in a mount namespace without the mount, as in the container that serves
	// it.
	hidden := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", unprivileged, dir, e2e.Batchfs}
	for _, args := range [][]string{{"doctor", dir}, {"doctor", "--mounted", dir}} {
		e2e.CheckOutput(t, "is mounted, served by process", slices.Concat(hidden, args)...)
	}
	e2e.Equal(t, "batch 7", e2e.Read(t, "read", m.Path("train/next"))[0], want[7])

	e2e.CheckOutput(t, "the process that mounted it must unmount it", append(hidden, "unmount", dir)...)
	m.AwaitEnd(t)
	e2e.Contains(t, "the log", m.Out.String(), "readers get errors until whoever made the mount unmounts it")
	e2e.CheckFails(t, "not connected", "cat", m.Path("train/next"))
	e2e.NoError(t, open.Close())
	e2e.NoError(t, syscall.Unmount(dir, 0))
}

// If whoever made the mount unmounts it, the process ends.
func TestHandedOverUnmounted(t *testing.T) {
	needNamespaces(t)
	dir := t.TempDir()
	e2e.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	config, want := e2e.SmallConfig(t, 1)
	device := mountFor(t, dir)
	cmd := e2e.Command(t, e2e.Batchfs, "mount", "-d", "--fd", "3", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), dir)
	cmd.ExtraFiles = []*os.File{device}
	out, err := cmd.CombinedOutput()
	var supervisor int
	if _, pid, _ := strings.Cut(string(out), "in the background, process "); err == nil {
		_, err = fmt.Sscan(pid, &supervisor)
	}
	if err != nil {
		t.Fatalf("mount -d --fd 3: error %v, output %s", err, out)
	}
	device.Close()
	e2e.Equal(t, "batch 0", e2e.Read(t, "read", filepath.Join(dir, "train/next"))[0], want[0])
	e2e.NoError(t, syscall.Unmount(dir, 0))
	e2e.AwaitEnded(t, supervisor)
}

// A descriptor that cannot be served is rejected, and its mount is left alone.
func TestHandedOverRejected(t *testing.T) {
	needNamespaces(t)
	config, _ := e2e.SmallConfig(t, 1)
	rejects := func(device *os.File, want string, args ...string) {
		t.Helper()
		cmd := e2e.Command(t, e2e.PlainBatchfs, append([]string{"mount", "-c", config, t.TempDir()}, args...)...)
		if device != nil {
			cmd.ExtraFiles = []*os.File{device}
		}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("mount %s: error %v, output %q, want %q", args, err, out, want)
		}
	}
	rejects(nil, "--fd: descriptor 1 is not handed over", "--fd", "1")
	rejects(nil, "--fd: descriptor 99 is not handed over", "--fd", "99")
	file := e2e.Must(os.Open(config))(t)
	defer file.Close()
	rejects(file, "--fd: descriptor 3 is "+config+"; it must be /dev/fuse", "--fd", "3")
	device := e2e.Must(os.OpenFile("/dev/fuse", os.O_RDWR, 0))(t)
	defer device.Close()
	rejects(device, "nothing is mounted with descriptor 3", "--fd", "3")
	rejects(device, "[fd no-resend]", "--fd", "3", "--no-resend")

	dir := t.TempDir()
	e2e.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	device = mountFor(t, dir)
	copied := e2e.Must(syscall.Dup(int(device.Fd())))(t)
	again := os.NewFile(uintptr(copied), "/dev/fuse")
	defer again.Close()
	m := handOver(t, device, dir, "-c", config, "--set", "mount.grace=0s")
	rejects(again, "a process serves this mount already", "--fd", "3")
	e2e.NoError(t, again.Close())
	e2e.Read(t, "read", m.Path("train/next"))
	e2e.Run(t, "setpriv", "--reuid", fmt.Sprint(e2e.Nobody), "--regid", fmt.Sprint(e2e.Nobody), "--clear-groups", e2e.Batchfs, "unmount", dir)
	m.AwaitEnd(t)
	e2e.NoError(t, syscall.Unmount(dir, 0))
}
