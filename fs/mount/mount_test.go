package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"batchfs/fs/state"
	"batchfs/internal/process"
	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

var noError = require.NoError

// newTestMount mounts with this process as the supervisor, and serves nothing.
func newTestMount(t *testing.T) (m *Mounted, connection *os.File, shared *state.Shared) {
	t.Helper()
	needFUSE(t)
	memory, shared, err := state.New()
	noError(t, err)
	dir := t.TempDir()
	m, connection, err = Connect(dir, false)
	noError(t, err)
	t.Cleanup(func() {
		shared.Close()
		memory.Close()
		connection.Close()
		unix.Unmount(dir, unix.MNT_DETACH)
	})
	return m, connection, shared
}

func needFUSE(t *testing.T) {
	t.Helper()
	fd, err := OpenDevice("/dev/fuse")
	if err == nil {
		unix.Close(fd)
	} else if os.Getenv("BATCHFS_REQUIRE_FUSE") == "1" {
		t.Fatal(err)
	} else {
		t.Skip(err)
	}
}

// Find does not touch the mount, because that would hang.
func TestFind(t *testing.T) {
	connected, connection, _ := newTestMount(t)
	dir := connected.Mountpoint
	m, err := Find(dir)
	if err != nil || m == nil || *m != *connected {
		t.Fatalf("%+v (%v), want %+v", m, err, connected)
	}
	if m.Root != "/" || m.Supervisor != os.Getpid() || m.CheckAlive() != nil || m.IsStopped() {
		t.Errorf("%+v, alive: %v, stopped: %v", m, m.CheckAlive(), m.IsStopped())
	}
	if m.Owner != os.Geteuid() || m.AllowOther {
		t.Errorf("user %d mounted, other users allowed: %v", m.Owner, m.AllowOther)
	}
	if m.IsDead() {
		t.Error("dead although its supervisor is alive")
	}
	fd, err := m.Pidfd()
	noError(t, err)
	defer unix.Close(fd)
	if err := m.Signal(0); err != nil {
		t.Error(err)
	}

	connection.Close()
	if !m.IsDead() {
		t.Error("alive without a connection")
	}
	for _, path := range []string{t.TempDir(), "/proc", filepath.Join(dir, "none")} {
		if m, err := Find(path); m != nil || err != nil {
			t.Errorf("%s: found %+v (%v)", path, m, err)
		}
	}
}

func TestForgedSource(t *testing.T) {
	m, _, _ := newTestMount(t)
	innocent := exec.Command("sleep", "infinity")
	noError(t, innocent.Start())
	defer innocent.Wait()
	defer innocent.Process.Kill()
	stat, err := process.ReadStat(process.Dir(innocent.Process.Pid))
	noError(t, err)
	for name, test := range map[string]struct {
		forge func(m *Mounted)
		want  error
	}{
		"another start time":    {func(m *Mounted) { m.began++ }, ErrDead},
		"another user":          {func(m *Mounted) { m.Owner++ }, ErrDead},
		"an innocent process":   {func(m *Mounted) { m.Supervisor, m.began = innocent.Process.Pid, stat.StartTicks }, ErrDead},
		"another PID namespace": {func(m *Mounted) { m.namespace++ }, ErrElsewhere},
	} {
		forged := *m
		test.forge(&forged)
		_, pidfd := forged.Pidfd()
		_, mapping := forged.State()
		for i, err := range []error{forged.CheckAlive(), pidfd, mapping, forged.Signal(unix.SIGTERM)} {
			if !errors.Is(err, test.want) || !strings.HasPrefix(err.Error(), m.Mountpoint+": ") {
				t.Errorf("%s, %d: %v, want the mountpoint and %v", name, i, err, test.want)
			}
		}
	}
}

// Snapshot does not open an ordinary file that has the name of a memfd.
func TestForgedMemory(t *testing.T) {
	m, _, _ := newTestMount(t)
	if os.Geteuid() != 0 {
		t.Skip("root alone can mount a tmpfs without a user namespace")
	}
	filesystem, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		defer unix.Close(filesystem)
		err = unix.FsconfigCreate(filesystem)
	}
	if err != nil {
		t.Skip(err)
	}
	nowhere, err := unix.Fsmount(filesystem, unix.FSMOUNT_CLOEXEC, 0)
	noError(t, err)
	defer unix.Close(nowhere)
	fd, err := unix.Openat(nowhere, "memfd:batchfs-snapshot (deleted)", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	noError(t, err)
	defer unix.Close(fd)
	if link, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); link != "/memfd:batchfs-snapshot (deleted)" {
		t.Fatalf("the file is called %q, so the test shows nothing", link)
	}
	if file, err := m.Snapshot(); err == nil {
		file.Close()
		t.Error("opened")
	}
}

func TestSnapshot(t *testing.T) {
	m, _, shared := newTestMount(t)
	if _, err := m.Snapshot(); err == nil || !strings.Contains(err.Error(), "is not the supervisor") {
		t.Errorf("the snapshot of a process that has none: %v", err)
	}
	for _, text := range []string{"first", "next"} {
		fd, err := unix.MemfdCreate("batchfs-snapshot", unix.MFD_CLOEXEC)
		noError(t, err)
		snapshot := os.NewFile(uintptr(fd), "snapshot")
		if _, err := snapshot.WriteString(text); err != nil {
			t.Fatal(err)
		}
		file, err := m.Snapshot()
		noError(t, err)
		if got, err := io.ReadAll(file); err != nil || string(got) != text {
			t.Errorf("the snapshot is %q (%v), want %q", got, err, text)
		}
		file.Close()
		snapshot.Close()
	}

	// During a restart, a supervisor has several.
	var list []*os.File
	for i := range 3 {
		fd, err := unix.MemfdCreate("batchfs-snapshot", unix.MFD_CLOEXEC)
		noError(t, err)
		snapshot := os.NewFile(uintptr(fd), "snapshot")
		defer snapshot.Close()
		fmt.Fprint(snapshot, i)
		list = append(list, snapshot)
	}
	for i, snapshot := range list {
		shared.Snapshot.Store(inodeOf(snapshot))
		file, err := m.Snapshot()
		noError(t, err)
		if got, err := io.ReadAll(file); err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("the snapshot is %q (%v), want %d", got, err, i)
		}
		file.Close()
	}
}

// Unmount unmounts a mount whose directory was moved, but no later mount with the same id.
func TestUnmount(t *testing.T) {
	m, _, _ := newTestMount(t)
	moved := filepath.Dir(m.Mountpoint) + "-moved"
	noError(t, os.Rename(filepath.Dir(m.Mountpoint), moved))
	t.Cleanup(func() { os.Rename(moved, filepath.Dir(m.Mountpoint)) })
	current, err := m.Current()
	if want := filepath.Join(moved, filepath.Base(m.Mountpoint)); err != nil || current == nil || current.Mountpoint != want {
		t.Fatalf("after a move to %s: %+v (%v)", want, current, err)
	}
	noError(t, m.Unmount(false))
	if left, err := m.Current(); left != nil || err != nil {
		t.Errorf("still there: %+v (%v)", left, err)
	}
	next, connection, err := Connect(current.Mountpoint, false)
	noError(t, err)
	defer next.Unmount(true)
	defer connection.Close()
	gone := *m
	gone.source += ":another"
	gone.id = next.id // the kernel reuses mount ids
	if err := gone.Unmount(true); err != nil {
		t.Error(err)
	}
	if left, err := next.Current(); left == nil || err != nil {
		t.Errorf("another mount is gone too (%v)", err)
	}
}

func TestUnmountUnderAnother(t *testing.T) {
	m, _, _ := newTestMount(t)
	if err := unix.Mount("tmpfs", m.Mountpoint, "tmpfs", 0, ""); err != nil {
		t.Skip(err)
	}
	for _, force := range []bool{false, true} {
		if err := m.Unmount(force); !errors.Is(err, unix.EBUSY) {
			t.Errorf("Unmount(%v): %v", force, err)
		}
	}
	noError(t, unix.Unmount(m.Mountpoint, 0))
	if err := m.Unmount(false); err != nil {
		t.Error(err)
	}
}

func TestConcurrentConnect(t *testing.T) {
	needFUSE(t)
	dir := t.TempDir()
	for range 20 {
		var all sync.WaitGroup
		var mounted, refused atomic.Int32
		for range 4 {
			all.Go(func() {
				m, connection, err := Connect(dir, false)
				switch {
				case err == nil:
					mounted.Add(1)
					t.Cleanup(func() { m.Unmount(true) })
					t.Cleanup(func() { connection.Close() })
				case strings.Contains(err.Error(), "a batchfs is already mounted there"), strings.Contains(err.Error(), "another process is mounting there"):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		testwait.End(t, "the goroutines", all.Wait)
		mounts, err := listMounts(func(i *mountinfo.Info) bool { return i.Mountpoint == dir })
		if err != nil || mounted.Load() != 1 || refused.Load() != 3 || len(mounts) != 1 {
			t.Fatalf("%d mounted, %d were refused, and the table has %d mounts (%v)", mounted.Load(), refused.Load(), len(mounts), err)
		}
		noError(t, mounts[0].Unmount(true))
	}
}

func TestConnectFollowsNoLink(t *testing.T) {
	needFUSE(t)
	dir, victim := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, "link")
	noError(t, errors.Join(os.Mkdir(filepath.Join(victim, "mnt"), 0o755), os.Symlink(victim, link)))
	for _, path := range []string{link, filepath.Join(link, "mnt"), victim} { // victim is not empty
		if m, connection, err := Connect(path, false); err == nil {
			connection.Close()
			m.Unmount(true)
			t.Errorf("mounted on %s", path)
		}
	}
}

// Even while a directory in the path is repeatedly swapped with a link, Connect and Unmount never
// affect the target of the link.
func TestExchangedWithLink(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("fusermount3 has checks of its own")
	}
	dir, victim := t.TempDir(), t.TempDir()
	path, link, covered := filepath.Join(dir, "a", "mnt"), filepath.Join(dir, "link"), filepath.Join(victim, "mnt")
	noError(t, errors.Join(os.MkdirAll(path, 0o755), os.Mkdir(covered, 0o755), os.Symlink(victim, link)))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "a"), unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() {
		close(stop)
		testwait.For(t, "the end of the swaps", stopped)
		for _, p := range []string{path, filepath.Join(link, "mnt"), covered} {
			unix.Unmount(p, unix.MNT_DETACH)
		}
	}()
	mounted, refused := 0, 0
	for end := time.Now().Add(time.Minute); (mounted < 30 || refused < 30) && time.Now().Before(end); {
		m, connection, err := Connect(path, false)
		if m, findErr := Find(covered); m != nil || findErr != nil {
			t.Fatalf("mounted on the target: %+v (%v)", m, findErr)
		}
		if err != nil {
			refused++
			continue
		}
		mounted++
		connection.Close()
		noError(t, unix.Mount("tmpfs", covered, "tmpfs", 0, ""))
		noError(t, m.Unmount(true))
		if other, err := mountinfo.Mounted(covered); err != nil || !other {
			t.Fatalf("unmounted the target: %v (%v)", !other, err)
		}
		noError(t, unix.Unmount(covered, 0))
	}
	left, err := listMounts(func(i *mountinfo.Info) bool { return strings.HasPrefix(i.Mountpoint, dir) })
	if err != nil || len(left) > 0 {
		t.Errorf("%d mounts are left (%v)", len(left), err)
	}
	t.Logf("%d mounts, %d refused", mounted, refused)
	if mounted == 0 || refused == 0 {
		t.Errorf("%d mounts, %d refused: the test shows nothing", mounted, refused)
	}
}

func TestFindFusermount(t *testing.T) {
	etc, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	expect := func(want string) {
		t.Helper()
		if _, err := FindFusermount(etc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	expect("apt-get install fuse3")
	noError(t, os.WriteFile(filepath.Join(bin, "fusermount3"), []byte("#!/bin/sh\n"), 0o755))
	// The real id fails for a user without an entry in passwd.
	noError(t, os.WriteFile(filepath.Join(bin, "id"), []byte("#!/bin/sh\nexit 1\n"), 0o755))
	expect(fmt.Sprintf("this user may not mount: "+insteadOfFUSE+"; to mount: fusermount3 needs a name for user id %d, and %s/passwd has none", os.Getuid(), etc))
	noError(t, os.Remove(filepath.Join(bin, "id")))
	expect("ln -s /proc/self/mounts " + filepath.Join(etc, "mtab"))
	noError(t, os.WriteFile(filepath.Join(etc, "mtab"), nil, 0o644))
	if helper, err := FindFusermount(etc); err != nil || helper != filepath.Join(bin, "fusermount3") {
		t.Errorf("%q %v", helper, err)
	}
}

// A link to a mountpoint finds the mount, even if the mount is dead or hangs.
func TestLinkToAMount(t *testing.T) {
	m, connection, _ := newTestMount(t)
	dir := t.TempDir()
	link, second := filepath.Join(dir, "link"), filepath.Join(dir, "second")
	noError(t, errors.Join(os.Symlink(m.Mountpoint+"/", link), os.Symlink("../"+filepath.Base(dir)+"/link", second)))
	check := func(state string) {
		t.Helper()
		for _, path := range []string{link, second} {
			testwait.End(t, "finding a mount that is "+state, func() {
				resolved, err := Resolve(path)
				if found, atErr := At(path); err != nil || atErr != nil || resolved != m.Mountpoint || found.id != m.id {
					t.Errorf("%s, %s: resolved to %s (%v), found %+v (%v)", state, path, resolved, err, found, atErr)
				}
			})
		}
	}
	check("hanging")
	connection.Close()
	check("dead")
	noError(t, errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o755), os.Symlink("a/../none", filepath.Join(dir, "dangling")),
		os.Symlink("loop", filepath.Join(dir, "loop")), os.Symlink("..", filepath.Join(dir, "up")), os.Symlink("/", filepath.Join(dir, "root"))))
	for name, want := range map[string]string{"dangling": dir + "/none", "loop": dir + "/loop", "up": filepath.Dir(dir), "root": "/", "a": dir + "/a"} {
		if resolved, err := Resolve(filepath.Join(dir, name)); err != nil || resolved != want {
			t.Errorf("%s: resolved to %s (%v), want %s", name, resolved, err, want)
		}
	}
}

// A process that has mapped a file elsewhere does not use the mount, whatever the path of the file.
func TestUsesBy(t *testing.T) {
	proc := t.TempDir()
	const line = "7f0000000000-7f0000001000 r--s 00000000 00:2d 4117                       "
	maps := line + "/data/mnt/tokens.bin\n" + line + "/mnt/train/batches.npy\n" + line + "[heap]\n" + line + "\n"
	noError(t, os.WriteFile(filepath.Join(proc, "maps"), []byte(maps), 0o644))
	m := &Mounted{Mountpoint: "/mnt", id: 1}
	if uses := m.usesBy(proc); !slices.Equal(uses, []string{"has mapped /mnt/train/batches.npy"}) {
		t.Errorf("%q", uses)
	}
}
