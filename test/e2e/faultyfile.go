package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// A FaultyFile is a token file that fails on demand, in a file system that the test process itself
// serves.
type FaultyFile struct {
	gofs.Inode
	Path    string
	content []byte

	mu      sync.Mutex
	turn    *sync.Cond // signals that mode has changed
	mode    Mode       // guarded by mu
	hanging int        // reads and opens that hang; guarded by mu
}

// A Mode is the way in which a FaultyFile works or fails.
type Mode int

const (
	Healthy  Mode = iota
	Denied        // opening fails with EACCES
	Failing       // reading fails with EIO
	Half          // reading the second half fails with EIO
	Gone          // the file does not exist: ENOENT
	Shorter       // the file has lost its second half
	Hang          // reading blocks until the mode changes, even if the reader is killed
	HangOpen      // opening blocks until the mode changes, even if the opener is killed
)

// NewFaultyFile mounts a healthy file. It is unmounted at the end of the test, after everything
// that was mounted later.
func NewFaultyFile(t testing.TB, content []byte) *FaultyFile {
	t.Helper()
	NeedFUSE(t)
	dir := t.TempDir()
	d := &FaultyFile{Path: filepath.Join(dir, "train.bin"), content: content}
	d.turn = sync.NewCond(&d.mu)
	root := &gofs.Inode{}
	server, err := gofs.Mount(dir, root, &gofs.Options{
		MountOptions: fuse.MountOptions{FsName: "faulty", Name: "faulty", DirectMount: true, ExplicitDataCacheControl: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild(filepath.Base(d.Path), root.NewPersistentInode(ctx, d, gofs.StableAttr{Ino: 2}), false)
		},
	})
	NoError(t, err)
	t.Cleanup(func() {
		d.Set(t, Healthy)
		unmounted := false
		defer func() {
			// With MNT_FORCE, FUSE fails every request that has no reply yet.
			if !unmounted {
				syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
			}
		}()
		// A killed process keeps the file open until the kernel has torn it down.
		Await(t, "the unmount of "+dir, func() bool {
			unmounted = server.Unmount() == nil
			return unmounted
		})
	})
	return d
}

// Set changes the mode. The kernel drops what it has cached of the file, except data that is being
// read while the file begins to hang. A file that hangs becomes healthy before earlier mounts are
// unmounted.
func (d *FaultyFile) Set(t testing.TB, m Mode) {
	t.Helper()
	if m == Hang || m == HangOpen {
		t.Cleanup(func() { d.Set(t, Healthy) })
		d.drop(t) // afterwards, this would wait for reads that hang
	}
	d.mu.Lock()
	d.mode = m
	d.mu.Unlock()
	d.turn.Broadcast()
	if m != Hang && m != HangOpen {
		// Otherwise, a waiting request would hang again if the next mode hangs too.
		Await(t, "the end of the reads and opens that hung", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.hanging == 0
		})
		d.drop(t)
	}
}

// Await waits until at least this many reads and opens hang.
func (d *FaultyFile) Await(t testing.TB, reads int) {
	t.Helper()
	Await(t, fmt.Sprintf("%d reads and opens that hang", reads), func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.hanging >= reads
	})
}

func (d *FaultyFile) drop(t testing.TB) {
	t.Helper()
	// ENOENT: nothing is cached.
	if errno := d.NotifyContent(0, 0); errno != 0 && errno != syscall.ENOENT {
		t.Errorf("%s stays in the page cache: %v", d.Path, errno)
	}
}

func (d *FaultyFile) current() (m Mode, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode == Shorter {
		return d.mode, d.content[:len(d.content)/4*2]
	}
	return d.mode, d.content
}

// hangWhile blocks while the mode is m, and returns the mode that ended the wait.
func (d *FaultyFile) hangWhile(m Mode) Mode {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.mode == m {
		d.hanging++
		d.turn.Wait()
		d.hanging--
	}
	return d.mode
}

func (d *FaultyFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	m, content := d.current()
	if m == Gone {
		return syscall.ENOENT
	}
	out.Mode, out.Size, out.Mtime = 0o644, uint64(len(content)), 1
	return 0
}

func (d *FaultyFile) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if d.hangWhile(HangOpen) == Denied {
		return nil, 0, syscall.EACCES
	}
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (d *FaultyFile) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.hangWhile(Hang)
	m, content := d.current()
	if m == Failing || m == Half && off+int64(len(dest)) > int64(len(content)/2) {
		return nil, syscall.EIO
	}
	content = content[min(off, int64(len(content))):]
	return fuse.ReadResultData(content[:min(len(dest), len(content))]), 0
}
