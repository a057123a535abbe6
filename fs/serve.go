package fs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
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
	"batchfs/fs/state"
	"batchfs/fs/supervise"
	"batchfs/internal/failpoint"
	"batchfs/internal/process"
)

// Options configure how a worker serves a mount.
type Options struct {
	Memory    Memory
	Access    Permissions
	Status    Status
	Timeout   time.Duration // limit on the time from a request to its reply
	OnServing func()        // called in a goroutine when this process begins to serve
	// Promoted is called before this process serves, once no other one does. Its error means that
	// this process must not serve.
	Promoted func() error
	Log      *slog.Logger
}

// Memory limits what a worker keeps in memory.
type Memory struct {
	PrefetchBatches int   // batches to prefetch for each sequential reader
	PrefetchBytes   int64 // limit for all prefetched batches
	ReplyBytes      int64 // limit for all replies
	TextBytes       int64 // limit for the texts of all open files
}

// Permissions determine who owns the files and who may use them.
type Permissions struct {
	Mode            uint32 // permission bits of files; readers of files may list directories
	UID, GID        uint32
	SettingsPerUser int // limit on the settings directories of each user, except root and UID
}

// Status renders status.json and metrics, which need more than package fs knows. The functions are
// called one at a time.
type Status struct {
	ProgramVersion string
	JSON           func(LiveStatus) []byte
	Metrics        func(counters *state.Shared) []byte
}

// Serve answers the kernel's requests once the supervisor promotes this process. It returns nil
// when the mount is gone, supervise.ErrReplaced when another process serves, and
// supervise.ErrPanicked when another process should serve because a request panicked here. Handlers
// may still be running then, so the process should exit.
func Serve(w *supervise.Worker, mountpoint string, splits []Sequence, o Options) error {
	log := newLimitedLog(o.Log)
	stop := make(chan error, 2)
	giveUp := sync.OnceFunc(func() { stop <- supervise.ErrPanicked })
	panicked := func(p any) fuse.Status {
		// The fault may lie in this process, so another one takes over.
		log.Error("a request panicked; its reader gets an error, and another worker takes over", "panic", p, "stack", string(debug.Stack()))
		giveUp()
		return fuse.EIO
	}
	// The guard replaces this file system before the first request.
	front := &struct{ fuse.RawFileSystem }{fuse.NewDefaultRawFileSystem()}
	server, fd, err := handshake(w, front, mountOptions(o.Log, panicked))
	if err != nil {
		return err
	}
	if _, err := residentBuffers(server); err != nil {
		o.Log.Warn("a request may fail with EIO if a worker is killed while the kernel delivers it", "err", err)
	}
	if err := w.AwaitPromotion(); err != nil {
		return err
	}
	if err := o.Promoted(); err != nil {
		return err
	}
	t, guarded, err := newGuardedTree(w, mountpoint, splits, panicked, log, o)
	if err != nil {
		return err
	}
	front.RawFileSystem = guarded
	if w.Shared.Workers.Add(1) > 1 {
		failpoint.Hit("succeed")
	}
	// Resend before reading the first request, which the kernel must not send again.
	if err := resend(w.Connection); err != nil {
		return err
	}
	w.Shared.SetProgram(o.Status.ProgramVersion)
	go o.OnServing()
	t.sequences.startForgetting(server)
	go func() {
		w.AnswerPings(guarded.CheckLock)
		stop <- supervise.ErrReplaced
	}()
	o.Log.Debug("this process serves", "pid", os.Getpid(), "workers", w.Shared.Workers.Load())
	// Report this before the first reply, because the supervisor must know it when a handler
	// publishes a snapshot.
	if err := w.Serving(); err != nil {
		return err
	}
	return answerRequests(server, fd, guarded, stop)
}

// newGuardedTree returns the tree of the mount, and the guard around it.
func newGuardedTree(
	w *supervise.Worker, mountpoint string, splits []Sequence, panicked func(any) fuse.Status, log *limitedLog, o Options,
) (t *tree, guarded *guard.Guard, err error) {
	guarded, err = guard.New(guard.Options{
		Splits:     len(splits),
		ReplyBytes: o.Memory.ReplyBytes,
		Shared:     w.Shared,
		Timeout:    o.Timeout,
		SendError:  func(id uint64, errno syscall.Errno) { unix.Write(w.Connection, errorReply(id, errno)) },
		Panicked:   panicked,
		IsKilled:   isKilled,
		Stalled:    func(split int) time.Duration { return t.sequences.peek(split).Stalled() },
	}, func(g *guard.Guard) (_ guard.FileSystem, err error) {
		t, err = newTree(mountpoint, splits, w.Shared, g, log, o)
		return t, err
	})
	return t, guarded, err
}

// isKilled reports whether a thread is being killed. The kernel makes SIGKILL pending for every
// thread of a process that a signal ends, whichever signal that is. Other pending signals, such as
// those of profilers and of Go's runtime, do not end it.
func isKilled(thread uint32) bool { return process.IsPending(int(thread), unix.SIGKILL) }

// answerRequests answers requests until the mount ends, or until it receives an error from stop,
// which it returns.
func answerRequests(server *fuse.Server, fd int, guarded *guard.Guard, stop <-chan error) error {
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

// tuneRuntime sets GOGC and GOMAXPROCS, unless the environment does. It is called only once the
// process serves: in a standby, a lower GOGC would cost more memory than it frees.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		// Collect often, so that resident memory does not grow during the first million batches.
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// Go counts a thread that waits for a request as running until the runtime has seen it wait
		// twice. If no further thread may run, the runtime checks every 20 microseconds, which
		// takes up to a sixth of the processor time.
		const spareThreads = 4
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + spareThreads)
	}
}

// resend asks the kernel to send unanswered requests again. Kernels before Linux 6.9 cannot, which
// is no error.
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
		// Page cache reads that wait for the files of one split must not block those of others.
		MaxBackground: math.MaxUint16,
		// Replies are in memory, so splicing them through a pipe would add a copy.
		DisableSplice: true,
		// The kernel keeps cached pages even if a file's attributes seem to change.
		ExplicitDataCacheControl: true,
		// Passthrough would rule out overlayfs on top of this mount.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		DisableXAttrs:        true,
		DisableReadDirPlus:   true,
		Name:                 "batchfs",
		// go-fuse logs replies that the kernel rejects because the reader was killed or has already
		// got an error.
		Logger:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		PanicHandler: panicked,
	}
}

// handshake returns a server on the worker's connection, and the server's own descriptor. The
// kernel sends INIT only to the first worker, which keeps it in the shared memory. Every worker
// passes it to its server over a socket pair. A later worker's reply must equal the first worker's.
func handshake(
	w *supervise.Worker, fs fuse.RawFileSystem, o *fuse.MountOptions,
) (server *fuse.Server, fd int, err error) {
	first := len(w.Shared.Init.Get()) == 0
	if first {
		if err := receiveInit(w); err != nil {
			return nil, 0, err
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot create a socket pair: %w", err)
	}
	defer unix.Close(pair[0])
	if _, err := unix.Write(pair[0], w.Shared.Init.Get()); err != nil {
		return nil, 0, err
	}
	if reply := w.Shared.InitReply.Get(); len(reply) > 0 {
		o.MaxWrite = int(initOut(reply).MaxWrite) // value of the build that mounted
	}
	server, err = fuse.NewServer(fs, fmt.Sprintf("/dev/fd/%d", pair[1]), o)
	if err != nil {
		return nil, 0, err
	}
	reply := make([]byte, maxInit)
	n, err := unix.Read(pair[0], reply)
	if err != nil {
		return nil, 0, err
	}
	// go-fuse derives MaxPages from MaxWrite, but reads are longer than writes.
	initOut(reply[:n]).MaxPages = uint16(mount.MaxRequest / os.Getpagesize())
	switch {
	case first:
		w.Shared.InitReply.Set(reply[:n])
	case !bytes.Equal(reply[:n], w.Shared.InitReply.Get()):
		return nil, 0, errors.New("this version of batchfs needs another FUSE handshake than the version that mounted: unmount, and mount again")
	}
	if err := unix.Dup3(w.Connection, pair[1], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}
	if first {
		if _, err := unix.Write(w.Connection, w.Shared.InitReply.Get()); err != nil {
			return nil, 0, fmt.Errorf("cannot reply to the kernel's first request: %w", err)
		}
	}
	return server, pair[1], nil
}

// maxInit is more than the size of INIT and of its reply, in bytes.
const maxInit = 64 << 10

// receiveInit reads INIT, and keeps it in the shared memory. If the first request is another one,
// some process has served the connection before, and the error is mount.ErrServed.
func receiveInit(w *supervise.Worker) error {
	request := make([]byte, maxInit)
	n, err := unix.Read(w.Connection, request)
	if err != nil {
		return fmt.Errorf("cannot read the kernel's first request: %w", err)
	}
	const opcode, id, opInit = 4, 8, 26
	if binary.NativeEndian.Uint32(request[opcode:]) != opInit {
		// Without a reply, the reader would wait forever.
		unix.Write(w.Connection, errorReply(binary.NativeEndian.Uint64(request[id:]), syscall.EIO))
		return mount.ErrServed
	}
	w.Shared.Init.Set(request[:n])
	return nil
}

// initOut returns the body of a reply to INIT. The result aliases the reply.
func initOut(reply []byte) *fuse.InitOut {
	return (*fuse.InitOut)(unsafe.Pointer(&reply[unsafe.Sizeof(fuse.OutHeader{})]))
}

// detachConnection replaces the server's descriptor fd with /dev/null and interrupts the threads
// that read from it. Otherwise, a request may fail because this process exits while the kernel
// copies the request to it. The next worker gets all unanswered requests.
func detachConnection(fd int, served <-chan struct{}) {
	devNull, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(devNull, fd, unix.O_CLOEXEC)
	}
	if err != nil {
		return
	}
	for _, thread := range process.Threads(os.Getpid()) {
		// The signal interrupts a read that waits for a request. The kernel restarts it on
		// /dev/null, which is open only for writing, so it fails.
		unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
	}
	select {
	case <-served:
	case <-time.After(50 * time.Millisecond): // a handler may be waiting for a disk
	}
}

// notifyResend is the message FUSE_NOTIFY_RESEND: 16 bytes long, with code 7 and no request id.
var notifyResend = []byte{0: 16, 4: 7, 15: 0}

func errorReply(id uint64, errno syscall.Errno) []byte {
	reply := binary.NativeEndian.AppendUint32(nil, 16) // length
	reply = binary.NativeEndian.AppendUint32(reply, uint32(-int32(errno)))
	return binary.NativeEndian.AppendUint64(reply, id)
}

// maxWrite is the longest write, in bytes. Nobody writes, but go-fuse's request buffers have room
// for one.
const maxWrite = 4096

// residentBuffers makes a *fuse.Server read requests into buffers whose first 4096 bytes are in
// memory. While a process is being killed, the kernel cannot add pages to it. If delivering a
// request needs a page, the request fails with EIO instead of going to the next worker. Replies
// need no such care, because a handler has just written them.
//
// The result is the pool of the buffers, a private field of the server in go-fuse v2.12.1, which
// has no public way to replace it.
func residentBuffers(server any) (*sync.Pool, error) {
	field := reflect.ValueOf(server).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return nil, fmt.Errorf("%T has no field readPool of type sync.Pool, unlike in go-fuse v2.12.1: package fs must be adapted to this version", server)
	}
	pool := (*sync.Pool)(field.Addr().UnsafePointer())
	if buf, _ := pool.Get().([]byte); len(buf) < 4096 {
		return nil, fmt.Errorf("readPool of %T does not hold buffers of 4096 bytes, unlike in go-fuse v2.12.1: package fs must be "+
			"adapted to this version", server)
	}
	allocate := pool.New
	*pool = sync.Pool{New: func() any {
		buf := allocate().([]byte)
		// A READ or LOOKUP fits into 4096 bytes, in up to two pages.
		buf[0], buf[4095] = 0, 0
		return buf
	}}
	return pool, nil
}
