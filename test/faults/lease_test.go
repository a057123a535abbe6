package faults

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// If another user overwrites a file in pieces, and the kernel grants no lease on it, the file is
// served again once it is complete. No batch mixes old and new tokens.
func TestOverwrittenWithoutALease(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root can be several users")
	const n, owner = 200_000, 1234
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("no setpriv")
	}
	dir := t.TempDir()
	file := e2e.Write(t, filepath.Join(dir, "train.bin"), e2e.TokensOfVersion(0, n))
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
			if version := int(binary.LittleEndian.Uint16(out[i:])) / 10_000; version != v {
				t.Fatalf("a batch mixes tokens of versions %d and %d", v, version)
			}
		}
		return v
	}
	e2e.Equal(t, "the version that is read", read(), 0)
	warnings := func() int { return strings.Count(m.Out.String(), "no lease can be had on token files") }
	e2e.Equal(t, "log lines about the lease", warnings(), 1)
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir) // might have set on_change or added files
	e2e.Await(t, "another log line about the lease", func() (any, bool) { return m.Out.String(), warnings() == 2 })

	f := e2e.Must(os.OpenFile(file, os.O_WRONLY, 0))(t)
	fresh := e2e.TokensOfVersion(1, n)
	e2e.Must(f.WriteAt(fresh[:n], 0))(t) // half of the file
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // keeps writing, however slow the reads are
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
	testwait.For(t, "the end of the writer", stopped)
	e2e.Must(f.WriteAt(fresh[n:], n))(t)
	e2e.NoError(t, f.Close())
	e2e.Await(t, "version 1 of the tokens", func() (any, bool) {
		version := read()
		return version, version == 1
	})
}

// A file that is open for writing is not mounted, because the kernel does not report writes through
// a mapping. Opening it for writing later does not end a mount. Other commands can read it.
func TestOpenForWriting(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	for _, how := range []string{"open", "mapped"} {
		t.Run(how, func(t *testing.T) {
			mountpoint, file := t.TempDir(), e2e.WriteTokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)
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
					t.Errorf("mount %s of a file that is %s for writing: error %v, %q, want one that says so", background, how, err, stderr)
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
