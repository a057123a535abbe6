package fs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/fs/guard"
	"batchfs/fs/mount"
	"batchfs/fs/supervise"
	"batchfs/internal/failpoint"
	"batchfs/internal/process"
)

// Serve answers the kernel's requests once the supervisor says so. It returns nil when the mount is gone,
// supervise.ErrReplaced when this process should end because another serves, and supervise.ErrPanicked when another should
// serve because a request panicked here. Handlers may still be under way then: the process should exit.
func Serve(w *supervise.Worker, mountpoint string, splits []Batches, o Options) error {
	log := newLimitedLog(o.Log)
	stop := make(chan error, 2) // why this process should no longer serve
	giveUp := sync.OnceFunc(func() { stop <- supervise.ErrPanicked })
	panicked := func(p any) fuse.Status { // which may be this process's fault
		log.Error("a request panicked; its reader gets an error, and another worker takes over", "panic", p, "stack", string(debug.Stack()))
		giveUp()
		return fuse.EIO
	}
	front := &struct{ fuse.RawFileSystem }{fuse.NewDefaultRawFileSystem()} // the tree takes its place before the first request
	server, fd, err := handshake(w, front, mountOptions(o.Log, panicked))
	if err != nil {
		return err
	}
	if err := w.AwaitPromotion(); err != nil {
		return err
	}
	t, err := newTree(mountpoint, splits, w.Shared, log, o)
	if err != nil {
		return err
	}
	guarded := guard.New(t, guard.Options{Splits: len(splits), ReplyBytes: o.Memory.ReplyBytes, Shared: w.Shared, Timeout: o.Timeout, Panicked: panicked, Stalled: t.sequences.stalled,
		SendError: func(id uint64, errno syscall.Errno) { unix.Write(w.Connection, errorReply(id, errno)) }})
	t.prefetcher.permits = guarded
	front.RawFileSystem = guarded
	if w.Shared.BeginWorker() > 1 {
		failpoint.Hit("succeed")
	}
	// Before the first request is read: the kernel must not resend what this process has read.
	if err := resend(w.Connection); err != nil {
		return err
	}
	w.Shared.SetProgram(o.Status.ProgramVersion)
	go o.Serving()
	for range invalidators {
		go t.sequences.invalidate(server)
	}
	go t.sequences.reconcile(func(directory uint64) bool {
		// With an offset in the file, the kernel would also drop cached pages, and wait for
		// reads that this process has not answered.
		const attributes = -1
		return server.InodeNotify(directory, attributes, 0) != fuse.ENOENT
	})
	go func() {
		w.AnswerPings(guarded.CheckLock)
		stop <- supervise.ErrReplaced
	}()
	o.Log.Debug("this process serves", "pid", os.Getpid(), "workers", w.Shared.Workers.Load())
	// Before the first answer: the supervisor keeps a snapshot that an answer publishes.
	if err := w.Serving(); err != nil {
		return err
	}
	return serve(server, fd, guarded, stop)
}

// serve answers requests until the mount ends, or stop says why this process should not.
func serve(server *fuse.Server, fd int, guarded *guard.Guard, stop <-chan error) error {
	served := make(chan struct{})
	tuneRuntime()
	go guarded.Run()
	go func() {
		server.Serve()
		close(served)
	}()
	select {
	case <-served:
		return nil
	case why := <-stop:
		guarded.Stop()
		detachConnection(fd, served)
		return why
	}
}

// tuneRuntime sets what suits a process that serves, unless somebody has set it. A standby is left as it is: to collect its garbage would take
// more memory than it gives back.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		// There is little garbage, so resident memory is the same after a million batches as after the first thousands.
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// Go lets as many threads run as there are processors, and counts one that waits for a request in the kernel among them until it
		// has looked at it twice. Unless some more may run, it looks every 20 microseconds, for up to a sixth of the processor time of batches.
		const waiting = 4
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + waiting)
	}
}

// resend asks the kernel to send the requests again that have no answer. An old kernel cannot.
func resend(connection int) error {
	if _, err := unix.Write(connection, notifyResend); err != nil && err != unix.EINVAL {
		return fmt.Errorf("cannot ask the kernel to resend unanswered requests: %w", err)
	}
	return nil
}

func mountOptions(log *slog.Logger, panicked func(any) fuse.Status) *fuse.MountOptions {
	return &fuse.MountOptions{
		MaxWrite:                maxWrite,
		MaxInflightRequestBytes: 64 << 20,
		// Reads for the page cache, of a split whose files do not answer, must not keep the others from theirs.
		MaxBackground: math.MaxUint16,
		// Replies are made in memory: splicing them would be one copy more, through a pipe.
		DisableSplice: true,
		// The kernel keeps a file's pages when its attributes seem to change.
		ExplicitDataCacheControl: true,
		// With it, the kernel would let no overlayfs lie over this mount.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		DisableXAttrs:        true,
		DisableReadDirPlus:   true,
		Name:                 "batchfs",
		// It tells of each reader that was killed, or had an error in time, before its answer.
		Logger:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		PanicHandler: panicked,
	}
}

// handshake makes a server on the connection, and returns the server's own descriptor. The kernel sends INIT to the first worker
// alone. Each later worker gets the same request over a socket, and must give the same answer.
func handshake(w *supervise.Worker, fs fuse.RawFileSystem, o *fuse.MountOptions) (server *fuse.Server, fd int, err error) {
	buf := make([]byte, 64<<10)
	first := len(w.Shared.Init.Get()) == 0
	if first {
		n, err := unix.Read(w.Connection, buf)
		if err != nil {
			return nil, 0, fmt.Errorf("the kernel's first request: %w", err)
		}
		const opcode, id, opInit = 4, 8, 26
		if binary.NativeEndian.Uint32(buf[opcode:]) != opInit {
			unix.Write(w.Connection, errorReply(binary.NativeEndian.Uint64(buf[id:]), syscall.EIO)) // or its reader would wait for ever
			return nil, 0, mount.ErrServed
		}
		w.Shared.Init.Set(buf[:n])
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	if _, err := unix.Write(pair[0], w.Shared.Init.Get()); err != nil {
		return nil, 0, err
	}
	if reply := w.Shared.InitReply.Get(); len(reply) > 0 {
		o.MaxWrite = int(initOut(reply).MaxWrite) // of the build that mounted
	}
	server, err = fuse.NewServer(fs, fmt.Sprintf("/dev/fd/%d", pair[1]), o)
	if err != nil {
		return nil, 0, err
	}
	if _, err := residentBuffers(server); err != nil {
		return nil, 0, err
	}
	n, err := unix.Read(pair[0], buf)
	if err != nil {
		return nil, 0, err
	}
	initOut(buf[:n]).MaxPages = uint16(mount.MaxRequest / os.Getpagesize()) // go-fuse allows reads no more than writes
	switch {
	case first:
		w.Shared.InitReply.Set(buf[:n])
	case !bytes.Equal(buf[:n], w.Shared.InitReply.Get()):
		return nil, 0, errors.New("this version of batchfs needs another FUSE handshake than the one that mounted: unmount, and mount again")
	}
	if err := unix.Dup3(w.Connection, pair[1], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}
	if first {
		if _, err := unix.Write(w.Connection, w.Shared.InitReply.Get()); err != nil {
			return nil, 0, fmt.Errorf("the answer to the kernel's first request: %w", err)
		}
	}
	return server, pair[1], nil
}

// initOut is what an answer to the kernel's first request says.
func initOut(reply []byte) *fuse.InitOut {
	return (*fuse.InitOut)(unsafe.Pointer(&reply[unsafe.Sizeof(fuse.OutHeader{})]))
}

// detachConnection replaces the server's connection, descriptor fd, by /dev/null, and interrupts the threads that read from it, because a
// request that the kernel is copying when its process dies may fail. The kernel sends unanswered requests to the next worker.
func detachConnection(fd int, served <-chan struct{}) {
	nobody, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(nobody, fd, unix.O_CLOEXEC)
	}
	if err != nil {
		return
	}
	for _, thread := range process.Threads(os.Getpid()) {
		// The signal interrupts a read that waits for a request. The kernel restarts it, on /dev/null, where it fails.
		unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
	}
	select {
	case <-served:
	case <-time.After(50 * time.Millisecond): // a handler waits for a disk
	}
}

// notifyResend is FUSE_NOTIFY_RESEND, of Linux 6.9: the kernel sends every unanswered request again.
var notifyResend = []byte{0: 16, 4: 7, 15: 0}

// errorReply is the answer to a request that failed.
func errorReply(id uint64, errno syscall.Errno) []byte {
	reply := binary.NativeEndian.AppendUint32(nil, 16) // its length
	reply = binary.NativeEndian.AppendUint32(reply, uint32(-int32(errno)))
	return binary.NativeEndian.AppendUint64(reply, id)
}
