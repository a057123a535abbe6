package alone

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// letUsersMount lets ordinary users mount until the end of the test.
func letUsersMount(t *testing.T) {
	t.Helper()
	e2e.NeedFUSE(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		e2e.Lack(t, "no fusermount3: apt-get install fuse3")
	}
	e2e.NeedRoot(t, "every other test is this one")
	// On ordinary hosts everybody may open /dev/fuse.
	info, err := os.Stat("/dev/fuse")
	e2e.NoError(t, err)
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
	home, err := os.MkdirTemp("", "batchfs-user-")
	e2e.NoError(t, err)
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
	asRoot := func(args ...string) (string, error) {
		stdout, stderr, err := e2e.Try(t, args...)
		return stdout + stderr, err
	}
	said, err := asNobody(e2e.Batchfs, "mount", "-d", "--data", filepath.Dir(data), dir)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	keeper, err := strconv.Atoi(regexp.MustCompile(`process (\d+)`).FindStringSubmatch(said)[1])
	e2e.NoError(t, err)
	if out, err := asNobody("head", "-c", "10", filepath.Join(dir, "train/next")); err != nil || len(out) != 10 {
		t.Errorf("reading as the user that mounted: %v %q", err, out)
	}
	if out, err := asNobody("cmp", filepath.Join(dir, "train/tokens.bin"), data); err != nil {
		t.Errorf("tokens.bin: %v %s", err, out)
	}
	log, err := os.ReadFile(filepath.Join(home, "batchfs/batchfs.log"))
	if err != nil || strings.Count(string(log), "read_ahead_kb") != 1 {
		t.Errorf("%v: the log does not say once that reading ahead is root's to set:\n%s", err, log)
	}
	e2e.Fails(t, "Permission denied", "cat", filepath.Join(dir, "README"))
	if e2e.Command(t, "grep", "-q", "^ *user_allow_other", "/etc/fuse.conf").Run() != nil {
		out, err := asNobody(e2e.Batchfs, "mount", "--set", "mount.allow_other=true", "--data", home, other)
		if err == nil || !strings.Contains(out, "echo user_allow_other >>/etc/fuse.conf") {
			t.Errorf("mounting for others without root's leave: %v %s", err, out)
		}
	}
	// Whoever dies.
	m := &e2e.Mounted{Dir: dir, Cmd: &exec.Cmd{Process: &os.Process{Pid: keeper}}}
	e2e.NoError(t, syscall.Kill(m.AwaitWorker(t), syscall.SIGKILL))
	if out, err := asNobody("head", "-c", "10", filepath.Join(dir, "train/next")); err != nil || len(out) != 10 {
		t.Errorf("reading from the second process: %v %q", err, out)
	}
	if out, err := asNobody(e2e.Batchfs, "restart", dir); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := asNobody(e2e.Batchfs, "doctor", "--data", home, dir); err != nil || !strings.Contains(out, "is mounted, served by process ") {
		t.Errorf("%v: %s", err, out)
	}
	e2e.NoError(t, syscall.Kill(keeper, syscall.SIGKILL))
	e2e.Await(t, "a dead mount", func() bool {
		out, err := asNobody("ls", dir)
		return err != nil && strings.Contains(out, "not connected")
	})
	if out, err := asNobody(e2e.Batchfs, "mount", "-d", "--data", home, dir); err != nil {
		t.Errorf("over a dead mount: %v: %s", err, out)
	}
	// Root could read what the user that mounted cannot, and says what that user would.
	if out, err := asRoot(e2e.Batchfs, "doctor", dir); err != nil || !strings.Contains(out, "ok   mounted train: 60000 tokens") {
		t.Errorf("%v: %s", err, out)
	}
	e2e.NoError(t, os.Chmod(data, 0))
	for who, doctor := range map[string]func(...string) (string, error){"the user": asNobody, "root": asRoot} {
		if out, err := doctor(e2e.Batchfs, "doctor", dir); err == nil || !strings.Contains(out, "FIX  mounted train: ") || !strings.Contains(out, "permission denied; as its owner, chmod a+r "+data) {
			t.Errorf("%s: %v: %s", who, err, out)
		}
	}
	if out, err := asNobody(e2e.Batchfs, "unmount", dir); err != nil || e2e.IsMounted(t, dir) {
		t.Errorf("%v: %s", err, out)
	}
	out, err := asNobody(e2e.Batchfs, "mount", "-d", "--data", filepath.Dir(data), dir)
	if err == nil || !strings.Contains(out, "train.bin: permission denied") || e2e.IsMounted(t, dir) {
		t.Errorf("mounting tokens that the user may not read: %v %s", err, out)
	}
}

// A file that is overwritten in place bit by bit, by somebody whom batchfs may not ask the kernel about, is served when it is
// whole: no batch mixes old and new tokens.
func TestOverwrittenWithoutALease(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root can be several users")
	const n, owner = 200_000, 1234
	for _, who := range []string{"an ordinary user", "root without CAP_LEASE"} {
		t.Run(who, func(t *testing.T) {
			home, err := os.MkdirTemp("", "batchfs-user-")
			e2e.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(home) })
			e2e.NoError(t, os.Chmod(home, 0o755))
			file := filepath.Join(home, "train.bin")
			e2e.Write(t, file, e2e.VersionOf(0, n))
			e2e.NoError(t, os.Chown(file, owner, owner))
			args := []string{"--data", home, "--set", "splits.train.on_change=follow", "--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			var dir string
			var log func() string
			as := uint32(0)
			if who == "an ordinary user" {
				letUsersMount(t)
				dir, as = filepath.Join(home, "mnt"), e2e.Nobody
				e2e.NoError(t, os.Mkdir(dir, 0o755))
				e2e.NoError(t, os.Chown(dir, e2e.Nobody, e2e.Nobody))
				logFile := filepath.Join(home, "log")
				e2e.Write(t, logFile, nil)
				e2e.NoError(t, os.Chown(logFile, e2e.Nobody, e2e.Nobody))
				t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
				if said, err := e2e.AsUser(t, e2e.Nobody, e2e.Nobody, append(append([]string{e2e.Batchfs, "mount", "-d", "--log", logFile}, args...), dir)...); err != nil {
					t.Fatalf("%v: %s", err, said)
				}
				log = func() string { text, _ := os.ReadFile(logFile); return string(text) }
			} else {
				if _, err := exec.LookPath("setpriv"); err != nil {
					t.Skip("no setpriv")
				}
				m := e2e.MountProgram(t, exec.Command("setpriv", "--bounding-set=-lease", e2e.Batchfs), args...)
				dir, log = m.Dir, m.Out.String
			}
			// read reads a batch and returns its version, or -1 for ESTALE.
			read := func() int {
				t.Helper()
				out, err := e2e.AsUser(t, as, as, "head", "-c", "512", filepath.Join(dir, "train/next"))
				if err != nil {
					if !strings.Contains(out, "Stale file handle") {
						t.Fatalf("%v: %s", err, out)
					}
					return -1
				}
				v := int(binary.LittleEndian.Uint16([]byte(out))) / 10_000
				for i := 0; i < len(out); i += 2 {
					if other := int(binary.LittleEndian.Uint16([]byte(out[i:]))) / 10_000; other != v {
						t.Fatalf("a batch has tokens of versions %d and %d", v, other)
					}
				}
				return v
			}
			if read() != 0 {
				t.Fatal("not the old tokens")
			}
			if n := strings.Count(log(), "no lease can be had on token files"); n != 1 {
				t.Errorf("the log says %d times that no lease can be had:\n%s", n, log())
			}

			half, whole := make(chan struct{}), make(chan struct{})
			goOn := make(chan struct{})
			go func() {
				defer close(whole)
				f, err := os.OpenFile(file, os.O_WRONLY, 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				fresh, at := e2e.VersionOf(1, n), int64(0)
				put := func(to int) {
					for ; at < int64(to); at += 1000 {
						f.WriteAt(fresh[at:at+1000], at)
					}
				}
				put(n) // bytes: half of the file
				close(half)
				for writing := true; writing; time.Sleep(time.Millisecond) { // and it writes on, however slowly the others get on
					at -= 1000
					put(n)
					select {
					case <-goOn:
						writing = false
					default:
					}
				}
				put(2 * n)
			}()
			<-half
			for range 50 {
				if v := read(); v != -1 {
					t.Errorf("half of the file is new, and a batch of version %d is read", v)
				}
			}
			close(goOn)
			<-whole
			e2e.Await(t, "the new tokens", func() bool { return read() == 1 })
		})
	}
}
