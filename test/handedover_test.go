package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// mountFor mounts as a driver does that serves nothing, and returns the descriptor to be handed over. The mount is gone at the end of
// the test.
func mountFor(t *testing.T, dir string) *os.File {
	t.Helper()
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("only root mounts without a helper")
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	noError(t, err)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", device.Fd())
	noError(t, syscall.Mount("driver", dir, "fuse.driver", syscall.MS_RDONLY|syscall.MS_NOSUID|syscall.MS_NODEV, options))
	t.Cleanup(func() {
		device.Close()
		syscall.Unmount(dir, syscall.MNT_DETACH)
	})
	return device
}

// without runs a command, of which the argument that ends in DIR is not mounted, with no right to mount anything.
const without = `umount -l "$0"; exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set -all --inh-caps -all "$@"`

// handOver starts a batchfs without any rights, which serves what somebody else mounted and it does not see.
func handOver(t *testing.T, device *os.File, dir string, args ...string) *mounted {
	t.Helper()
	m := &mounted{dir: dir, done: make(chan struct{})}
	m.cmd = exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", without, dir, batchfs, "mount", "--fd", "3"}, args...)...)
	m.cmd.Args = append(m.cmd.Args, dir)
	m.cmd.ExtraFiles = []*os.File{device}
	m.start(t)
	device.Close()
	await(t, "a mount that is ready", func() bool {
		if m.ended() {
			t.Fatalf("mount %s ended:\n%s", args, m.out)
		}
		return strings.Contains(m.out.String(), "stop with Ctrl-C")
	})
	return m
}

// Who may not mount serves what another has mounted: batches, in their order, also when its worker is killed, and commands find it by
// its mountpoint. At the end readers get errors, and whoever mounted unmounts.
func TestHandedOver(t *testing.T) {
	needNamespaces(t)
	dir := t.TempDir()
	noError(t, os.Chmod(filepath.Dir(dir), 0o755))
	config, want := small(t, 9)
	m := handOver(t, mountFor(t, dir), dir, "-c", config, "--set", "mount.grace=0s")
	kept, err := os.Open(m.path("train/batch/1"))
	noError(t, err)
	defer kept.Close()
	for k, batch := range want[:5] {
		if got := read(t, "read", m.path("train/next"))[0]; got != batch {
			t.Errorf("batch %d is %s, want %s", k, got, batch)
		}
		noError(t, syscall.Kill(m.awaitStandby(t)[0], syscall.SIGKILL))
	}

	nobody := func(args ...string) string {
		t.Helper()
		out, err := asUser(t, nobody, nobody, append([]string{batchfs}, args...)...)
		if err != nil {
			t.Errorf("%s: %v %s", args, err, out)
		}
		return out
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"restart", dir}, "serves " + dir},
		{[]string{"seek", m.path("train"), "7"}, "takes batch 7, was 5"},
		{[]string{"doctor", dir}, "ok   mountpoint: " + dir + " is mounted, served by process "},
		{[]string{"inspect", m.path("train"), "7"}, "batch 7"},
	} {
		if said := nobody(test.args...); !strings.Contains(said, test.want) {
			t.Errorf("%s: %s", test.args, said)
		}
	}
	// also where the mount cannot be seen, as in the container that serves it
	hidden := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", without, dir, batchfs}
	for _, args := range [][]string{{"doctor", dir}, {"doctor", "--mounted", dir}} {
		if said := run(t, slices.Concat(hidden, args)...); !strings.Contains(said, "is mounted, served by process") {
			t.Errorf("%s: %s", args, said)
		}
	}
	if got := read(t, "read", m.path("train/next"))[0]; got != want[7] {
		t.Errorf("batch 7 is %s, want %s", got, want[7])
	}

	if said := run(t, append(hidden, "unmount", dir)...); !strings.Contains(said, "the process that mounted it must unmount it") {
		t.Errorf("unmount: %s", said)
	}
	m.awaitEnd(t)
	if !strings.Contains(m.out.String(), "the mount is left to whoever made it") {
		t.Error("it does not say that the mount is left")
	}
	if _, stderr, err := try(t, "cat", m.path("train/next")); err == nil || !strings.Contains(stderr, "not connected") {
		t.Errorf("a reader afterwards: %v %s", err, stderr)
	}
	noError(t, kept.Close())
	noError(t, syscall.Unmount(dir, 0))
}

// The mount ends when whoever made it unmounts.
func TestHandedOverUnmounted(t *testing.T) {
	needNamespaces(t)
	dir := t.TempDir()
	noError(t, os.Chmod(filepath.Dir(dir), 0o755))
	config, want := small(t, 1)
	device := mountFor(t, dir)
	cmd := command(t, batchfs, "mount", "-d", "--fd", "3", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), dir)
	cmd.ExtraFiles = []*os.File{device}
	out, err := cmd.CombinedOutput()
	var keeper int
	if _, said, _ := strings.Cut(string(out), "in the background, process "); err == nil {
		_, err = fmt.Sscan(said, &keeper)
	}
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	device.Close()
	if got := read(t, "read", filepath.Join(dir, "train/next"))[0]; got != want[0] {
		t.Errorf("batch 0 is %s, want %s", got, want[0])
	}
	noError(t, syscall.Unmount(dir, 0))
	awaitEnded(t, keeper)
}

// A descriptor that cannot be served is refused, and its mount is not harmed.
func TestHandedOverRefused(t *testing.T) {
	needNamespaces(t)
	config, _ := small(t, 1)
	refused := func(device *os.File, want string, args ...string) {
		t.Helper()
		cmd := command(t, plainBatchfs, append([]string{"mount", "-c", config, t.TempDir()}, args...)...)
		if device != nil {
			cmd.ExtraFiles = []*os.File{device}
		}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %q, want %q", args, err, out, want)
		}
	}
	refused(nil, "--fd: descriptor 1 is not handed over", "--fd", "1")
	refused(nil, "--fd: descriptor 99 is not handed over", "--fd", "99")
	file, err := os.Open(config)
	noError(t, err)
	defer file.Close()
	refused(file, "--fd: descriptor 3 is "+config+"; it must be /dev/fuse", "--fd", "3")
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	noError(t, err)
	defer device.Close()
	refused(device, "nothing is mounted with descriptor 3", "--fd", "3")
	refused(device, "[fd no-resend]", "--fd", "3", "--no-resend")

	dir := t.TempDir()
	noError(t, os.Chmod(filepath.Dir(dir), 0o755))
	device = mountFor(t, dir)
	copied, err := syscall.Dup(int(device.Fd()))
	noError(t, err)
	again := os.NewFile(uintptr(copied), "/dev/fuse")
	defer again.Close()
	m := handOver(t, device, dir, "-c", config, "--set", "mount.grace=0s")
	refused(again, "a process serves this mount already", "--fd", "3")
	noError(t, again.Close())
	read(t, "read", m.path("train/next"))
	run(t, "setpriv", "--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups", batchfs, "unmount", dir)
	m.awaitEnd(t)
	noError(t, syscall.Unmount(dir, 0))
}
