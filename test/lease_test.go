package test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A file that is overwritten in place bit by bit, by somebody whom batchfs may not ask the kernel about, is served when it is
// whole: no batch mixes old and new tokens.
func TestOverwrittenWithoutALease(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can be several users")
	}
	const n, owner = 200_000, 1234
	for _, who := range []string{"an ordinary user", "root without CAP_LEASE"} {
		t.Run(who, func(t *testing.T) {
			home, err := os.MkdirTemp("", "batchfs-user-")
			noError(t, err)
			t.Cleanup(func() { os.RemoveAll(home) })
			noError(t, os.Chmod(home, 0o755))
			file := filepath.Join(home, "train.bin")
			write(t, file, versionOf(0, n))
			noError(t, os.Chown(file, owner, owner))
			args := []string{"--data", home, "--set", "splits.train.on_change=follow", "--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			var dir string
			var log func() string
			as := uint32(0)
			if who == "an ordinary user" {
				letUsersMount(t)
				dir, as = filepath.Join(home, "mnt"), nobody
				noError(t, os.Mkdir(dir, 0o755))
				noError(t, os.Chown(dir, nobody, nobody))
				logFile := filepath.Join(home, "log")
				write(t, logFile, nil)
				noError(t, os.Chown(logFile, nobody, nobody))
				t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
				if said, err := asUser(t, nobody, nobody, append(append([]string{batchfs, "mount", "-d", "--log", logFile}, args...), dir)...); err != nil {
					t.Fatalf("%v: %s", err, said)
				}
				log = func() string { text, _ := os.ReadFile(logFile); return string(text) }
			} else {
				if _, err := exec.LookPath("setpriv"); err != nil {
					t.Skip("no setpriv")
				}
				m := mountProgram(t, exec.Command("setpriv", "--bounding-set=-lease", batchfs), args...)
				dir, log = m.dir, m.out.String
			}
			// read reads a batch and returns its version, or -1 for ESTALE.
			read := func() int {
				t.Helper()
				out, err := asUser(t, as, as, "head", "-c", "512", filepath.Join(dir, "train/next"))
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
				fresh, at := versionOf(1, n), int64(0)
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
			await(t, "the new tokens", func() bool { return read() == 1 })
		})
	}
}

// What writes to token files through a mapping is not seen, so a file that somebody may write to is not mounted; it is no reason
// to end a mount, or to keep another command from reading.
func TestOpenForWriting(t *testing.T) {
	needFUSE(t)
	for _, how := range []string{"open", "mapped"} {
		t.Run(how, func(t *testing.T) {
			mountpoint, file := t.TempDir(), tokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)
			t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			noError(t, err)
			end := f.Close
			if how == "mapped" {
				mapping, err := unix.Mmap(int(f.Fd()), 0, 120_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				noError(t, err)
				noError(t, f.Close())
				end = func() error { return unix.Munmap(mapping) }
			}
			ended := false
			defer func() {
				if !ended {
					end()
				}
			}()
			for _, background := range []string{"-d", "--no-resend"} {
				_, stderr, err := try(t, batchfs, "mount", background, "--data", filepath.Dir(file), mountpoint)
				if err == nil || !strings.Contains(stderr, "splits.train: "+file+" is open for writing") || !strings.Contains(stderr, `mode="r"`) {
					t.Errorf("%v %s", err, stderr)
				}
			}
			cat(t, "train", "--data", filepath.Dir(file))
			run(t, batchfs, "inspect", "train", "0", "--data", filepath.Dir(file))
			ended = true
			noError(t, end())
			m := mount(t, "--data", filepath.Dir(file))
			again, err := os.OpenFile(file, os.O_RDWR, 0)
			noError(t, err)
			defer again.Close()
			run(t, batchfs, "restart", m.dir)
			run(t, "head", "-c1", m.path("train/next"))
		})
	}
}

// A copy with the time of the file, in its place, is the file to readers; another file of the same size and time is not.
func TestCopyInPlace(t *testing.T) {
	for _, onChange := range []string{"error", "follow"} {
		t.Run(onChange, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "train.bin")
			write(t, file, versionOf(0, changeTokens))
			settings := []string{"--data", filepath.Dir(file), "--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			m := mount(t, append(settings, "--set", "splits.train.on_change="+onChange)...)
			all := cat(t, append([]string{"train", "--count", "40"}, settings...)...)
			h := startHandles(t, m.dir)
			h.do("open train/next")
			h.do("open train/batches.bin")
			k := 0
			step := func() {
				t.Helper()
				want := line(all[k*512:][:512])
				for _, read := range []string{"read 0 0 512", "read 1 " + strconv.Itoa(k*512) + " 512"} {
					if got := h.do("%s", read); got != want {
						t.Errorf("%s: %s, want batch %d", read, got, k)
					}
				}
				if got := read(t, "read", m.path("train/batch/"+strconv.Itoa(k)))[0]; got != want {
					t.Errorf("batch/%d: %s", k, got)
				}
				k++
			}
			step()
			for range 3 {
				run(t, "cp", "-p", file, file+".new")
				noError(t, os.Rename(file+".new", file))
				step()
			}
			noError(t, syscall.Kill(m.awaitWorker(t), syscall.SIGKILL)) // another one does as well
			step()
			if got := infoOf(t, m); got.Changes != 0 || strings.Contains(m.out.String(), "changed") {
				t.Errorf("%d changes, and the log says\n%s", got.Changes, m.out)
			}

			was, err := os.Stat(file)
			noError(t, err)
			raw := versionOf(0, changeTokens)
			raw[0]++
			write(t, file+".new", raw)
			noError(t, os.Chtimes(file+".new", was.ModTime(), was.ModTime()))
			noError(t, os.Rename(file+".new", file))
			if onChange == "follow" {
				await(t, "another file to be noticed", func() bool { return infoOf(t, m).Changes == 1 })
			} else if _, stderr, err := try(t, "cat", m.path("train/batch/30")); err == nil || !strings.Contains(stderr, "Stale file handle") {
				t.Errorf("another file of the same time: %v %s", err, stderr)
			}
		})
	}
}
