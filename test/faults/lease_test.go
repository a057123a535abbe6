package faults

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// A file that another user overwrites in place bit by bit, and on which the kernel gives no lease, is served when it is
// whole: no batch mixes old and new tokens.
func TestOverwrittenWithoutALease(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root can be several users")
	const n, owner = 200_000, 1234
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("no setpriv")
	}
	dir := t.TempDir()
	file := e2e.Write(t, filepath.Join(dir, "train.bin"), e2e.VersionOf(0, n))
	e2e.NoError(t, os.Chown(file, owner, owner))
	m := e2e.MountProgram(t, exec.Command("setpriv", "--bounding-set=-lease", e2e.Batchfs), "--data", dir, "--set", "splits.train.on_change=follow",
		"--set", "batch.batch_size=4", "--set", "batch.block_size=32")
	// read reads a batch and returns its version, or -1 for ESTALE.
	read := func() int {
		t.Helper()
		out, err := e2e.Command(t, "head", "-c", "512", m.Path("train/next")).CombinedOutput()
		if err != nil {
			if !strings.Contains(string(out), "Stale file handle") {
				t.Fatalf("%v: %s", err, out)
			}
			return -1
		}
		v := int(binary.LittleEndian.Uint16(out)) / 10_000
		for i := 0; i < len(out); i += 2 {
			if other := int(binary.LittleEndian.Uint16(out[i:])) / 10_000; other != v {
				t.Fatalf("a batch has tokens of versions %d and %d", v, other)
			}
		}
		return v
	}
	e2e.Equal(t, "the version that is read", read(), 0)
	e2e.Equal(t, "times that the log says so", strings.Count(m.Out.String(), "no lease can be had on token files"), 1)

	f := e2e.Must(os.OpenFile(file, os.O_WRONLY, 0))(t)
	fresh := e2e.VersionOf(1, n)
	e2e.Must(f.WriteAt(fresh[:n], 0))(t) // half of the file
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // it writes on, however slowly the others get on
		defer close(stopped)
		for {
			f.WriteAt(fresh[n-1000:n], n-1000)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	for range 50 {
		e2e.Equal(t, "while half of the file is new, the version that is read", read(), -1)
	}
	close(stop)
	<-stopped
	e2e.Must(f.WriteAt(fresh[n:], n))(t)
	e2e.NoError(t, f.Close())
	e2e.Await(t, "the new tokens", func() bool { return read() == 1 })
}

// What writes to token files through a mapping is not seen, so a file that a process may write to is not mounted; it is no reason
// to end a mount, or to keep another command from reading.
func TestOpenForWriting(t *testing.T) {
	e2e.NeedFUSE(t)
	for _, how := range []string{"open", "mapped"} {
		t.Run(how, func(t *testing.T) {
			mountpoint, file := t.TempDir(), e2e.Tokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)
			t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
			f := e2e.Must(os.OpenFile(file, os.O_RDWR, 0))(t)
			end := f.Close
			if how == "mapped" {
				mapping := e2e.Must(unix.Mmap(int(f.Fd()), 0, 120_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
				e2e.NoError(t, f.Close())
				end = func() error { return unix.Munmap(mapping) }
			}
			defer end()
			for _, background := range []string{"-d", "--no-resend"} {
				_, stderr, err := e2e.Try(t, e2e.Batchfs, "mount", background, "--data", filepath.Dir(file), mountpoint)
				if err == nil || !strings.Contains(stderr, "splits.train: "+file+" is open for writing") || !strings.Contains(stderr, `mode="r"`) {
					t.Errorf("%v %s", err, stderr)
				}
			}
			e2e.Cat(t, "train", "--data", filepath.Dir(file))
			e2e.Run(t, e2e.Batchfs, "inspect", "train", "0", "--data", filepath.Dir(file))
			e2e.NoError(t, end())
			m := e2e.Mount(t, "--data", filepath.Dir(file))
			again := e2e.Must(os.OpenFile(file, os.O_RDWR, 0))(t)
			defer again.Close()
			e2e.Run(t, e2e.Batchfs, "restart", m.Dir)
			e2e.Run(t, "head", "-c1", m.Path("train/next"))
		})
	}
}

// A copy with the time of the file, in its place, is the file to readers; another file of the same size and time is not.
func TestCopyInPlace(t *testing.T) {
	for _, onChange := range []string{"error", "follow"} {
		t.Run(onChange, func(t *testing.T) {
			file := e2e.Write(t, filepath.Join(t.TempDir(), "train.bin"), e2e.VersionOf(0, changeTokens))
			settings := []string{"--data", filepath.Dir(file), "--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			m := e2e.Mount(t, append(settings, "--set", "splits.train.on_change="+onChange)...)
			want := e2e.Lines(t, "train", 0, 5, settings...)
			h := e2e.StartHandles(t, m.Dir)
			h.Do("open train/next")
			h.Do("open train/batches.bin")
			k := 0
			step := func() {
				t.Helper()
				for _, read := range []string{"read 0 0 512", fmt.Sprintf("read 1 %d 512", k*512)} {
					e2e.Equal(t, read, h.Do("%s", read), want[k])
				}
				e2e.Equal(t, fmt.Sprintf("batch/%d", k), e2e.Take(t, m, fmt.Sprint("train/batch/", k)), want[k])
				k++
			}
			step()
			for range 3 {
				e2e.Run(t, "cp", "-p", file, file+".new")
				e2e.NoError(t, os.Rename(file+".new", file))
				step()
			}
			e2e.NoError(t, syscall.Kill(m.AwaitWorker(t), syscall.SIGKILL)) // another one does as well
			step()
			if got := m.Info(t, "train"); got.Changes != 0 || strings.Contains(m.Out.String(), "changed") {
				t.Errorf("%d changes, and the log says\n%s", got.Changes, m.Out)
			}

			was := e2e.Must(os.Stat(file))(t)
			raw := e2e.VersionOf(0, changeTokens)
			raw[0]++
			e2e.Write(t, file+".new", raw)
			e2e.NoError(t, os.Chtimes(file+".new", was.ModTime(), was.ModTime()))
			e2e.NoError(t, os.Rename(file+".new", file))
			if onChange == "follow" {
				e2e.Await(t, "another file to be noticed", func() bool { return m.Info(t, "train").Changes == 1 })
			} else {
				e2e.Fails(t, "Stale file handle", "cat", m.Path("train/batch/30"))
			}
		})
	}
}
