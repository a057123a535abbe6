package fs

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
)

// The kernel ends a request with EIO if it cannot add a page to copy it into, as in a process that is being killed.
func TestBuffersOfRequestsAreResident(t *testing.T) {
	const kernelsMinimum = 8192 // FUSE_MIN_READ_BUFFER
	server, _ := fuseServer(t)
	pool := residentBuffers(server)
	var bufs [][]byte
	for range 20 {
		bufs = append(bufs, pool.Get().([]byte))
	}
	runtime.GC()
	debug.FreeOSMemory()
	for _, buf := range append(bufs, pool.Get().([]byte)) {
		for _, at := range []int{0, 4095} {
			var there byte
			page := uintptr(unsafe.Pointer(&buf[at])) &^ uintptr(os.Getpagesize()-1)
			if _, _, errno := unix.Syscall(unix.SYS_MINCORE, page, 1, uintptr(unsafe.Pointer(&there))); errno != 0 {
				t.Fatal("mincore:", errno)
			}
			if len(buf) < kernelsMinimum || len(buf) > 2*kernelsMinimum || there&1 == 0 {
				t.Fatalf("a buffer of %d bytes, with byte %d in memory: %v", len(buf), at, there&1 != 0)
			}
		}
	}
}

// A request may read far more than it may write.
func TestMaxPages(t *testing.T) {
	_, reply := fuseServer(t)
	setMaxPages(reply)
	out := (*fuse.InitOut)(unsafe.Pointer(&reply[unsafe.Sizeof(fuse.OutHeader{})]))
	if int(out.MaxPages)*os.Getpagesize() != mount.MaxRequest || out.MaxWrite != maxWrite || out.Major != 7 {
		t.Errorf("protocol %d, reads of up to %d pages, writes of up to %d bytes", out.Major, out.MaxPages, out.MaxWrite)
	}
}

// fuseServer is a server on a connection whose other end has sent the first request and nothing else, and got an answer.
func fuseServer(t *testing.T) (server *fuse.Server, reply []byte) {
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
	server, err = fuse.NewServer(fuse.NewDefaultRawFileSystem(), fmt.Sprintf("/dev/fd/%d", pair[1]), &fuse.MountOptions{MaxWrite: maxWrite})
	if err != nil {
		t.Fatal(err)
	}
	reply = make([]byte, 4096)
	n, err := unix.Read(pair[0], reply)
	if err != nil {
		t.Fatal(err)
	}
	return server, reply[:n]
}
