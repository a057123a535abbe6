package test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// A double is a token file that fails as it is told to, alone in a filesystem that the test itself serves.
type double struct {
	gofs.Inode
	path    string
	content []byte

	mu      sync.Mutex
	turn    *sync.Cond // that mode is another
	mode    mode       // guarded by mu
	hanging int        // reads; guarded by mu
}

// A mode is what becomes of who uses a double.
type mode int

const (
	healthy mode = iota
	denied       // to open it is EACCES
	failing      // to read it is EIO
	half         // to read its second half is EIO
	gone         // it is not there: ENOENT
	shorter      // it has lost its second half
	hang         // to read it takes until the mode is another, whatever happens to the reader meanwhile
)

// newDouble mounts a healthy double. It is unmounted at the end of the test, after what was mounted later than this.
func newDouble(t testing.TB, content []byte) *double {
	t.Helper()
	needFUSE(t)
	dir := t.TempDir()
	d := &double{path: filepath.Join(dir, "train.bin"), content: content}
	d.turn = sync.NewCond(&d.mu)
	root := &gofs.Inode{}
	server, err := gofs.Mount(dir, root, &gofs.Options{
		MountOptions: fuse.MountOptions{FsName: "double", Name: "double", DirectMount: true, ExplicitDataCacheControl: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild(filepath.Base(d.path), root.NewPersistentInode(ctx, d, gofs.StableAttr{Ino: 2}), false)
		},
	})
	noError(t, err)
	t.Cleanup(func() {
		d.set(t, healthy)
		if err := server.Unmount(); err != nil {
			t.Errorf("%s: %v", dir, err)
			// As FUSE takes it, to force is to fail every request that has no answer yet.
			syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
		}
	})
	return d
}

// set makes the double fail in another way, or not at all. What the kernel had of it is dropped, but for what is read at the
// very moment that it begins to hang. A double that hangs is let go before what was mounted earlier is unmounted.
func (d *double) set(t testing.TB, m mode) {
	t.Helper()
	if m == hang {
		t.Cleanup(func() { d.set(t, healthy) })
		d.drop(t) // now, as afterwards it would wait for reads that hang
	}
	d.mu.Lock()
	d.mode = m
	d.mu.Unlock()
	d.turn.Broadcast()
	if m != hang {
		d.drop(t)
	}
}

// await returns when so many reads hang at once.
func (d *double) await(t testing.TB, reads int) {
	t.Helper()
	await(t, fmt.Sprintf("%d reads that hang", reads), func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.hanging >= reads
	})
}

func (d *double) drop(t testing.TB) {
	t.Helper()
	if errno := d.NotifyContent(0, 0); errno != 0 && errno != syscall.ENOENT { // that says that the kernel has nothing of it
		t.Errorf("%s stays in the page cache: %v", d.path, errno)
	}
}

func (d *double) now() (m mode, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode == shorter {
		return d.mode, d.content[:len(d.content)/4*2]
	}
	return d.mode, d.content
}

func (d *double) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	m, content := d.now()
	if m == gone {
		return syscall.ENOENT
	}
	out.Mode, out.Size, out.Mtime = 0o644, uint64(len(content)), 1
	return 0
}

func (d *double) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if m, _ := d.now(); m == denied {
		return nil, 0, syscall.EACCES
	}
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (d *double) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.mu.Lock()
	d.hanging++
	for d.mode == hang {
		d.turn.Wait()
	}
	d.hanging--
	d.mu.Unlock()
	m, content := d.now()
	if m == failing || m == half && off+int64(len(dest)) > int64(len(content)/2) {
		return nil, syscall.EIO
	}
	content = content[min(off, int64(len(content))):]
	return fuse.ReadResultData(content[:min(len(dest), len(content))]), 0
}

// A double does what it is told, and lets go of who hangs.
func TestDouble(t *testing.T) {
	content := versionOf(0, 100_000)
	d := newDouble(t, content)
	for range 2 {
		for _, test := range []struct {
			mode mode
			want string // what cat says
		}{
			{healthy, ""}, {denied, "Permission denied"}, {failing, "Input/output error"},
			{half, "Input/output error"}, {gone, "No such file"}, {shorter, ""},
		} {
			d.set(t, test.mode)
			out, stderr, err := try(t, "cat", d.path)
			_, content := d.now()
			if test.want == "" && (err != nil || out != string(content)) || !strings.Contains(stderr, test.want) {
				t.Errorf("in mode %d, %d bytes and %v %s, want %q", test.mode, len(out), err, stderr, test.want)
			}
		}
		d.set(t, hang)
		reader, done := command(t, "cat", d.path), make(chan []byte)
		go func() {
			out, _ := reader.Output()
			done <- out
		}()
		d.await(t, 1)
		d.set(t, healthy)
		if out := <-done; string(out) != string(content) {
			t.Errorf("let go, a reader got %d bytes", len(out))
		}
	}
}
