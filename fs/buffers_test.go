package fs

import (
	"encoding/hex"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/fs/supervise"
)

func TestRequestBuffersAreResident(t *testing.T) {
	const kernelsMinimum = 8192 // FUSE_MIN_READ_BUFFER
	server, _ := shakeHands(t, newShared(t), 0)
	pool, err := residentBuffers(server)
	if err != nil {
		t.Fatal(err)
	}
	var bufs [][]byte
	for range 20 {
		bufs = append(bufs, pool.Get().([]byte))
	}
	runtime.GC()
	debug.FreeOSMemory()
	for _, buf := range append(bufs, pool.Get().([]byte)) {
		for _, pos := range []int{0, 4095} {
			var resident byte
			page := uintptr(unsafe.Pointer(&buf[pos])) &^ uintptr(os.Getpagesize()-1)
			if _, _, errno := unix.Syscall(unix.SYS_MINCORE, page, 1, uintptr(unsafe.Pointer(&resident))); errno != 0 {
				t.Fatal("mincore:", errno)
			}
			if len(buf) < kernelsMinimum || len(buf) > 2*kernelsMinimum || resident&1 == 0 {
				t.Fatalf("a buffer of %d bytes, with byte %d in memory: %v", len(buf), pos, resident&1 != 0)
			}
		}
	}
}

func TestUnknownGoFuseVersion(t *testing.T) {
	for _, server := range []any{
		&struct{}{}, &struct{ readPool *sync.Pool }{}, &struct{ readPool sync.Pool }{},
		&struct{ readPool sync.Pool }{sync.Pool{New: func() any { return 1 }}}, &struct{ readPool sync.Pool }{sync.Pool{New: func() any { return []byte{1} }}},
	} {
		if _, err := residentBuffers(server); err == nil {
			t.Errorf("no error for %T", server)
		}
	}
}

// Reads may be longer than writes, whose limit comes from the build that mounted.
func TestHandshake(t *testing.T) {
	shared := newShared(t)
	for _, maxWrite := range []uint32{maxWrite, 1 << 20} {
		server, reply := shakeHands(t, shared, 0)
		out := initOut(reply)
		if out.Major != 7 || int(out.MaxPages)*os.Getpagesize() != mount.MaxRequest || out.MaxWrite != maxWrite {
			t.Errorf("protocol %d, reads of up to %d pages, writes of up to %d bytes", out.Major, out.MaxPages, out.MaxWrite)
		}
		if pool, err := residentBuffers(server); err != nil || len(pool.Get().([]byte)) < int(maxWrite) {
			t.Errorf("%v, or buffers too small for writes of up to %d", err, maxWrite)
		}
		out.MaxWrite = 1 << 20
		shared.InitReply.Set(reply)
	}
}

// All versions reply to INIT with the same bytes. The kernel gets the reply of the version that
// mounted, and a worker of another version serves only if its own reply is equal. If this test
// fails, perhaps because of another default of go-fuse, change the options of the server, not the
// bytes.
func TestReplyToInitStays(t *testing.T) {
	const before = "50000000000000000200000000000000070000001c00000000000200"
	const after = "ffffffbf0010000000000000000000000000000001000000000000000000000000000000000000000000000000000000"
	for flags, want := range map[uint32]string{0: "00000040", math.MaxUint32: "25004642"} {
		_, reply := shakeHands(t, newShared(t), flags)
		out := initOut(reply)
		if n := int(out.MaxPages) * os.Getpagesize(); n != 1<<20 {
			t.Errorf("reads of up to %d bytes, and up to %d in earlier versions", n, 1<<20)
		}
		out.MaxPages = 0 // depends on the machine
		if got, want := hex.EncodeToString(reply), before+want+after; got != want {
			t.Errorf("the reply to INIT with the flags %#x is\n%s, and in earlier versions\n%s", flags, got, want)
		}
	}
}

// shakeHands simulates a worker's handshake with a kernel that offers features, as the flags of
// INIT. It returns the server and its reply to INIT.
func shakeHands(t *testing.T, shared *state.Shared, flags uint32) (*fuse.Server, []byte) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	init := fuse.InitIn{Major: 7, Minor: 40, MaxReadAhead: 1 << 17, Flags: flags, Flags2: flags}
	init.Length, init.Opcode, init.Unique = uint32(unsafe.Sizeof(init)), 26, 2
	if _, err := unix.Write(pair[0], unsafe.Slice((*byte)(unsafe.Pointer(&init)), init.Length)); err != nil {
		t.Fatal(err)
	}
	w := &supervise.Worker{Shared: shared, Connection: pair[1]}
	log := slog.New(slog.DiscardHandler)
	server, _, err := handshake(w, fuse.NewDefaultRawFileSystem(), mountOptions(log, nil))
	if err != nil {
		t.Fatal(err)
	}
	return server, shared.InitReply.Get()
}
