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

	mu          sync.Mutex
	modeChanged *sync.Cond // uses mu
	mode        Mode       // guarded by mu
	hanging     int        // reads and opens that hang; guarded by mu
}

// A Mode is the way in which a FaultyFile works or fails.
type Mode int

const (
	Healthy  Mode = iota
	Denied        // opening fails with EACCES
	Failing       // reading fails with EIO
	Half          // reading the second half fails with EIO
	Gone          // the file does not exist (ENOENT)
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
	f := &FaultyFile{Path: filepath.Join(dir, "train.bin"), content: content}
	f.modeChanged = sync.NewCond(&f.mu)
	root := &gofs.Inode{}
	server := Must(fuse.NewServer(gofs.NewNodeFS(root, &gofs.Options{
		OnAdd: func(ctx context.Context) {
			root.AddChild(filepath.Base(f.Path), root.NewPersistentInode(ctx, f, gofs.StableAttr{Ino: 2}), false)
		},
	}), dir, &fuse.MountOptions{FsName: "faulty", Name: "faulty", DirectMount: true, ExplicitDataCacheControl: true}))(t)
	go server.Serve()
	// For a moment, WaitMount has a file in the mount open without O_CLOEXEC. A program that
	// another test starts then would keep the mount busy.
	syscall.ForkLock.RLock()
	err := server.WaitMount()
	syscall.ForkLock.RUnlock()
	NoError(t, err)
	t.Cleanup(func() {
		f.Set(t, Healthy)
		unmounted := false
		defer func() {
			// With MNT_FORCE, FUSE fails every request that has no reply yet.
			if !unmounted {
				syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
			}
		}()
		// A killed process keeps the file open until the kernel has cleaned up the process.
		AwaitSuccess(t, "the unmount of "+dir, func() error {
			err := server.Unmount()
			unmounted = err == nil
			return err
		})
	})
	return f
}

// Set changes the mode. The kernel drops what it has cached of the file, except for data that is
// being read when the file begins to hang. At the end of the test, a file that hangs becomes
// healthy before earlier mounts are unmounted.
func (f *FaultyFile) Set(t testing.TB, m Mode) {
	t.Helper()
	if m == Hang || m == HangOpen {
		t.Cleanup(func() { f.Set(t, Healthy) })
		f.dropCache(t) // once reads hang, this would wait for them
	}
	f.mu.Lock()
	f.mode = m
	f.mu.Unlock()
	f.modeChanged.Broadcast()
	if m != Hang && m != HangOpen {
		// Otherwise, a waiting request would hang again if the next mode hangs too.
		f.awaitHanging(t, "the end of the reads and opens that hung", func(n int) bool { return n == 0 })
		f.dropCache(t)
	}
}

// AwaitHanging waits until at least n reads or opens hang.
func (f *FaultyFile) AwaitHanging(t testing.TB, n int) {
	t.Helper()
	f.awaitHanging(t, fmt.Sprintf("%d reads and opens that hang", n), func(hanging int) bool { return hanging >= n })
}

func (f *FaultyFile) awaitHanging(t testing.TB, what string, ok func(hanging int) bool) {
	t.Helper()
	Await(t, what, func() (any, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return fmt.Sprintf("%d that hang", f.hanging), ok(f.hanging)
	})
}

// dropCache makes the kernel drop what it has cached of the file.
func (f *FaultyFile) dropCache(t testing.TB) {
	t.Helper()
	// ENOENT: nothing is cached.
	if errno := f.NotifyContent(0, 0); errno != 0 && errno != syscall.ENOENT {
		t.Errorf("%s stays in the page cache: %v", f.Path, errno)
	}
}

func (f *FaultyFile) current() (m Mode, content []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mode == Shorter {
		return f.mode, f.content[:len(f.content)/4*2]
	}
	return f.mode, f.content
}

// hangWhile blocks while the mode is m, and returns the mode that ended the wait.
func (f *FaultyFile) hangWhile(m Mode) Mode {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.mode == m {
		f.hanging++
		f.modeChanged.Wait()
		f.hanging--
	}
	return f.mode
}

func (f *FaultyFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	m, content := f.current()
	if m == Gone {
		return syscall.ENOENT
	}
	out.Mode, out.Size, out.Mtime = 0o644, uint64(len(content)), 1
	return 0
}

func (f *FaultyFile) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if f.hangWhile(HangOpen) == Denied {
		return nil, 0, syscall.EACCES
	}
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (f *FaultyFile) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.hangWhile(Hang)
	m, content := f.current()
	if m == Failing || m == Half && off+int64(len(dest)) > int64(len(content)/2) {
		return nil, syscall.EIO
	}
	content = content[min(off, int64(len(content))):]
	return fuse.ReadResultData(content[:min(len(dest), len(content))]), 0
}
