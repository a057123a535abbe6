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

// A Double is a token file that fails as it is told to, alone in a filesystem that the test itself serves.
type Double struct {
	gofs.Inode
	Path    string
	content []byte

	mu      sync.Mutex
	turn    *sync.Cond // that mode is another
	mode    Mode       // guarded by mu
	hanging int        // reads, and opens; guarded by mu
}

// A Mode is what becomes of who uses a double.
type Mode int

const (
	Healthy  Mode = iota
	Denied        // to open it is EACCES
	Failing       // to read it is EIO
	Half          // to read its second half is EIO
	Gone          // it is not there: ENOENT
	Shorter       // it has lost its second half
	Hang          // to read it takes until the mode is another, whatever happens to the reader meanwhile
	HangOpen      // the same, but to open it
)

// NewDouble mounts a healthy double. It is unmounted at the end of the test, after what was mounted later than this.
func NewDouble(t testing.TB, content []byte) *Double {
	t.Helper()
	NeedFUSE(t)
	dir := t.TempDir()
	d := &Double{Path: filepath.Join(dir, "train.bin"), content: content}
	d.turn = sync.NewCond(&d.mu)
	root := &gofs.Inode{}
	server, err := gofs.Mount(dir, root, &gofs.Options{
		MountOptions: fuse.MountOptions{FsName: "double", Name: "double", DirectMount: true, ExplicitDataCacheControl: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild(filepath.Base(d.Path), root.NewPersistentInode(ctx, d, gofs.StableAttr{Ino: 2}), false)
		},
	})
	NoError(t, err)
	t.Cleanup(func() {
		d.Set(t, Healthy)
		unmounted := false
		defer func() {
			if !unmounted { // as FUSE takes it, to force is to fail every request that has no answer yet
				syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
			}
		}()
		// A process that was killed with the file open has it until the kernel has ended that process.
		Await(t, "the unmount of "+dir, func() bool {
			unmounted = server.Unmount() == nil
			return unmounted
		})
	})
	return d
}

// Set makes the double fail in another way, or not at all. The kernel drops what it has cached, except what is read at the
// very moment that it begins to hang. A double that hangs is let go before what was mounted earlier is unmounted.
func (d *Double) Set(t testing.TB, m Mode) {
	t.Helper()
	if m == Hang || m == HangOpen {
		t.Cleanup(func() { d.Set(t, Healthy) })
		d.drop(t) // now, as afterwards it would wait for reads that hang
	}
	d.mu.Lock()
	d.mode = m
	d.mu.Unlock()
	d.turn.Broadcast()
	if m != Hang && m != HangOpen {
		Await(t, "the end of what hung", func() bool { // or it would hang again with the next mode
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.hanging == 0
		})
		d.drop(t)
	}
}

// Await returns when so many reads or opens hang at once.
func (d *Double) Await(t testing.TB, reads int) {
	t.Helper()
	Await(t, fmt.Sprintf("%d that hang", reads), func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.hanging >= reads
	})
}

func (d *Double) drop(t testing.TB) {
	t.Helper()
	if errno := d.NotifyContent(0, 0); errno != 0 && errno != syscall.ENOENT { // that says that the kernel has nothing of it
		t.Errorf("%s stays in the page cache: %v", d.Path, errno)
	}
}

func (d *Double) now() (m Mode, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode == Shorter {
		return d.mode, d.content[:len(d.content)/4*2]
	}
	return d.mode, d.content
}

// hangWhile waits until the mode is not m, and returns the mode then.
func (d *Double) hangWhile(m Mode) Mode {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.mode == m {
		d.hanging++
		d.turn.Wait()
		d.hanging--
	}
	return d.mode
}

func (d *Double) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	m, content := d.now()
	if m == Gone {
		return syscall.ENOENT
	}
	out.Mode, out.Size, out.Mtime = 0o644, uint64(len(content)), 1
	return 0
}

func (d *Double) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if d.hangWhile(HangOpen) == Denied {
		return nil, 0, syscall.EACCES
	}
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (d *Double) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.hangWhile(Hang)
	m, content := d.now()
	if m == Failing || m == Half && off+int64(len(dest)) > int64(len(content)/2) {
		return nil, syscall.EIO
	}
	content = content[min(off, int64(len(content))):]
	return fuse.ReadResultData(content[:min(len(dest), len(content))]), 0
}
