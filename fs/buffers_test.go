package fs

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
)

// The kernel ends a request with EIO if it cannot add a page to copy it into, as in a process that is being killed.
func TestBuffersOfRequestsAreResident(t *testing.T) {
	server := fuseServer(t)
	if field, ok := reflect.TypeFor[fuse.Server]().FieldByName("readPool"); !ok || field.Type != reflect.TypeFor[sync.Pool]() {
		t.Fatal("fuse.Server keeps its buffers elsewhere than in readPool, a sync.Pool: residentBuffers must find them")
	}
	pool := residentBuffers(server)
	var bufs [][]byte
	for range 20 {
		bufs = append(bufs, pool.Get().([]byte))
	}
	runtime.GC()
	debug.FreeOSMemory()
	for _, buf := range append(bufs, pool.Get().([]byte)) {
		if len(buf) < mount.MaxRequest {
			t.Fatalf("a buffer of %d bytes, want %d or more", len(buf), mount.MaxRequest)
		}
		for _, at := range []int{0, 4095} {
			if !isResident(t, &buf[at]) {
				t.Errorf("byte %d of a buffer is not in memory", at)
			}
		}
	}
}

// isResident reports whether the page that holds a byte is in memory.
func isResident(t *testing.T, at *byte) bool {
	page := uintptr(os.Getpagesize())
	var there byte
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(at))&^(page-1), page, uintptr(unsafe.Pointer(&there))); errno != 0 {
		t.Fatal("mincore:", errno)
	}
	return there&1 != 0
}

// fuseServer is a server on a connection whose other end has sent the first request and nothing else.
func fuseServer(t *testing.T) *fuse.Server {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]) })
	init := fuse.InitIn{Major: 7, Minor: 40, MaxReadAhead: 1 << 17}
	init.Length, init.Opcode, init.Unique = uint32(unsafe.Sizeof(init)), 26, 2
	if _, err := unix.Write(pair[0], unsafe.Slice((*byte)(unsafe.Pointer(&init)), init.Length)); err != nil {
		t.Fatal(err)
	}
	server, err := fuse.NewServer(fuse.NewDefaultRawFileSystem(), fmt.Sprintf("/dev/fd/%d", pair[1]), &fuse.MountOptions{MaxWrite: mount.MaxRequest})
	if err != nil {
		t.Fatal(err)
	}
	return server
}
