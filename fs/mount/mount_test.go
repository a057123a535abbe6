package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/fs/state"
)

// connected is a mount that this process keeps and nobody serves. It is gone at the end of the test.
func connected(t *testing.T) (dir string, connection *os.File) {
	t.Helper()
	fd, err := OpenDevice("/dev/fuse")
	if err == nil {
		unix.Close(fd)
	} else if os.Getenv("BATCHFS_REQUIRE_FUSE") == "1" {
		t.Fatal(err)
	} else {
		t.Skip(err)
	}
	dir = t.TempDir()
	connection, err = Connect(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Close()
		unix.Unmount(dir, unix.MNT_DETACH)
	})
	return dir, connection
}

// A mount is found with the process that keeps it, and not touched: nobody would answer.
func TestFind(t *testing.T) {
	dir, connection := connected(t)
	m, err := Find(dir)
	if err != nil || m == nil {
		t.Fatal(m, err)
	}
	if m.Mountpoint != dir || m.Supervisor != os.Getpid() || m.Alive() != nil || m.Stopped() {
		t.Errorf("%+v, alive: %v, stopped: %v", m, m.Alive(), m.Stopped())
	}
	if m.Owner != os.Geteuid() || m.AllowOther {
		t.Errorf("user %d mounted, for others: %v", m.Owner, m.AllowOther)
	}
	if places := m.Places(); !slices.Contains(places, "at "+dir) {
		t.Errorf("mounted %q, and not at %s", places, dir)
	}
	if device, err := DeviceAt(dir); err != nil || device == "" || device != m.Device {
		t.Errorf("device %q (%v), want %q", device, err, m.Device)
	}
	if m.Dead() {
		t.Error("dead, and its keeper lives")
	}
	fd, err := m.Pidfd()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := m.Signal(0); err != nil {
		t.Error(err)
	}

	// Another process of the same id is not the one that mounted.
	other := *m
	other.began++
	if _, err := other.Pidfd(); !errors.Is(other.Alive(), ErrDead) || !errors.Is(err, ErrDead) || !errors.Is(other.Signal(0), ErrDead) {
		t.Errorf("a process that began at another time: %v, %v", other.Alive(), err)
	}
	if _, err := other.State(); !errors.Is(err, ErrDead) {
		t.Errorf("its state: %v", err)
	}

	// Nor is a process of another user, whatever the mount says.
	other = *m
	other.Owner++
	if _, err := other.Pidfd(); !errors.Is(other.Alive(), ErrDead) || !errors.Is(err, ErrDead) || !errors.Is(other.Signal(0), ErrDead) {
		t.Errorf("a process of another user: %v, %v", other.Alive(), err)
	}
	other = *m
	other.namespace++
	if _, err := other.Pidfd(); !errors.Is(other.Alive(), ErrElsewhere) || !errors.Is(err, ErrElsewhere) || other.Dead() {
		t.Errorf("a process of another PID namespace: %v, %v", other.Alive(), err)
	}

	connection.Close()
	if !m.Dead() {
		t.Error("alive without a connection")
	}
	for _, path := range []string{t.TempDir(), "/proc", filepath.Join(dir, "none")} {
		if m, err := Find(path); m != nil || err != nil {
			t.Errorf("%s: found %+v (%v)", path, m, err)
		}
	}
}

// The state that the supervisor holds can be looked at, and written by those who ask for that.
func TestState(t *testing.T) {
	dir, _ := connected(t)
	m, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.State(); err == nil || !strings.Contains(err.Error(), "keeps no mount") {
		t.Errorf("the state of a process that has none: %v", err)
	}
	file, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	defer shared.Close()
	shared.WorkerPID.Store(77)
	seen, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Close()
	if seen.Worker() != 77 {
		t.Errorf("worker %d, want 77", seen.Worker())
	}
	written, err := m.WritableState()
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	written.WorkerPID.Store(78)
	if seen.Worker() != 78 {
		t.Errorf("worker %d, want 78", seen.Worker())
	}
}

// The snapshot is the oldest one that the supervisor holds: a newer one is of a worker that does not serve yet.
func TestSnapshot(t *testing.T) {
	dir, _ := connected(t)
	m, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Snapshot(); err == nil || !strings.Contains(err.Error(), "keeps no mount") {
		t.Errorf("the snapshot of a process that has none: %v", err)
	}
	hold := func(text string, written time.Time) *os.File {
		fd, err := unix.MemfdCreate("batchfs-snapshot", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "snapshot")
		t.Cleanup(func() { file.Close() })
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(fmt.Sprintf("/proc/self/fd/%d", fd), written, written); err != nil {
			t.Fatal(err)
		}
		return file
	}
	holds := func(want string) {
		t.Helper()
		file, err := m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if got, err := io.ReadAll(file); err != nil || string(got) != want {
			t.Errorf("the snapshot is %q (%v), want %q", got, err, want)
		}
	}
	now := time.Now()
	hold("next", now)
	first := hold("first", now.Add(-time.Second))
	holds("first")
	first.Close()
	holds("next")
}

// Only a batchfs is unmounted.
func TestUnmount(t *testing.T) {
	dir, _ := connected(t)
	if err := Unmount(t.TempDir(), true); err == nil || !strings.Contains(err.Error(), "no batchfs is mounted there") {
		t.Errorf("unmounting nothing: %v", err)
	}
	if err := Unmount(dir, true); err != nil {
		t.Fatal(err)
	}
	if m, err := Find(dir); m != nil || err != nil {
		t.Errorf("still there: %+v (%v)", m, err)
	}
	if err := Unmount(dir, true); err == nil {
		t.Error("unmounted twice")
	}
}

func TestOpenDevice(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenDevice(filepath.Join(dir, "fuse")); err == nil || !strings.Contains(err.Error(), "modprobe fuse") {
		t.Errorf("a device that is not there: %v", err)
	}
}

// What an ordinary user needs is named, with what helps.
func TestUserMounts(t *testing.T) {
	etc, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	says := func(allowOther bool, want string) {
		t.Helper()
		if _, err := UserMounts(etc, allowOther); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	says(false, "apt-get install fuse3")
	if err := os.WriteFile(filepath.Join(bin, "fusermount3"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// As id does for a user who is in no passwd.
	if err := os.WriteFile(filepath.Join(bin, "id"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	says(false, fmt.Sprintf("fusermount3 needs a name for user id %d, and %s/passwd has none", os.Getuid(), etc))
	if err := os.Remove(filepath.Join(bin, "id")); err != nil {
		t.Fatal(err)
	}
	says(false, "ln -s /proc/self/mounts "+filepath.Join(etc, "mtab"))
	if err := os.WriteFile(filepath.Join(etc, "mtab"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if helper, err := UserMounts(etc, false); err != nil || helper != filepath.Join(bin, "fusermount3") {
		t.Errorf("%q %v", helper, err)
	}
	says(true, "echo user_allow_other >>"+filepath.Join(etc, "fuse.conf"))
}
