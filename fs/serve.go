package fs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A Worker serves a mount for a keeper, until it is replaced, killed, or the mount is gone.
type Worker struct {
	// Snapshot is what the keeper was given last to begin a worker from.
	Snapshot *os.File

	connection int // of the kernel, /dev/fuse
	block      *block
	control    *socket

	giveUp sync.Once
	stop   chan int // the exit status with which another is to take over
}

// What a keeper hands to a worker, as the descriptors from 3 on.
const (
	connectionFd = 3 + iota
	blockFd
	controlFd
	snapshotFd
	// ExtraFd is the first descriptor that the command of a worker was given by itself.
	ExtraFd
)

// What they say to each other.
const (
	sayPrepared = "prepared" // the worker could serve
	sayServe    = "serve"    // it is to, nobody else does any more
	sayServing  = "serving"
	sayGo       = "go" // it is to end, another serves
	sayPing     = "ping"
	sayPong     = "pong"
	saySnapshot = "snapshot" // with a file
	sayRefused  = "refused " // it cannot serve, and why
)

// Inherit is for a process that a keeper has started.
func Inherit() (*Worker, error) {
	for fd := connectionFd; fd <= ExtraFd; fd++ {
		unix.CloseOnExec(fd)
	}
	w := &Worker{
		Snapshot:   os.NewFile(snapshotFd, "snapshot"),
		connection: connectionFd,
		control:    &socket{fd: controlFd},
		stop:       make(chan int, 1),
	}
	var err error
	if w.block, err = mapBlock(os.NewFile(blockFd, "block"), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		w.Refuse(err)
		return nil, err
	}
	return w, nil
}

// Refuse tells the keeper why this process cannot serve.
func (w *Worker) Refuse(err error) {
	text := sayRefused + err.Error()
	w.control.say(text[:min(len(text), len(w.control.buf))], nil)
}

// Publish gives the keeper a snapshot for successors to begin from. It belongs to the keeper then.
func (w *Worker) Publish(snapshot *os.File) error {
	defer snapshot.Close()
	return w.control.say(saySnapshot, snapshot)
}

// Serve serves the sequences until the mount is gone. It does not return where another process takes over.
func (w *Worker) Serve(mountpoint string, sequences []*Sequence, o Options) error {
	t := newTree(mountpoint, sequences, o)
	t.giveUp = func() { w.exit(exitPanic) }
	server, fd, err := w.handshake(t, o.Log)
	if err != nil {
		return err
	}
	if err := w.control.say(sayPrepared, nil); err != nil {
		return err
	}
	if said, _, err := w.control.hear(); err != nil || said != sayServe {
		os.Exit(0) // another serves, or the keeper is gone
	}
	w.block.worker.Store(int64(os.Getpid()))
	if err := t.goOn(sequences, w.block, o); err != nil {
		return err
	}
	t.watch.answer = func(id uint64, errno unix.Errno) { unix.Write(w.connection, errorReply(id, errno)) }
	// Before the first request is read: what this process has read itself must not come again.
	if _, err := unix.Write(w.connection, notifyResend); err != nil && err != unix.EINVAL {
		return fmt.Errorf("the kernel does not send again what was not answered: %w", err)
	}
	served := make(chan struct{})
	go t.watch.run(served)
	for range forgetters {
		go func() {
			for {
				p := t.sequences.outdated()
				server.EntryNotify(uint64(p.dir), p.name) // it may have forgotten by itself
			}
		}()
	}
	go w.obey(t)
	go func() {
		server.Serve()
		close(served)
	}()
	o.Log.Debug("this process serves", "pid", os.Getpid(), "workers", w.block.workers.Load())
	if err := w.control.say(sayServing, nil); err != nil {
		return err
	}
	select {
	case <-served:
		return nil
	case status := <-w.stop:
		t.watch.close()
		w.leave(fd, served)
		os.Exit(status)
		return nil
	}
}

// Exit statuses of a worker that another is to replace.
const (
	exitReplaced = 0
	exitPanic    = 3
)

func (w *Worker) exit(status int) { w.giveUp.Do(func() { w.stop <- status }) }

// obey does what the keeper says, and ends with it.
func (w *Worker) obey(t *tree) {
	for {
		said, _, err := w.control.hear()
		switch {
		case err != nil:
			os.Exit(1)
		case said == sayGo:
			w.exit(exitReplaced)
		case said == sayPing:
			t.passLocks()
			w.control.say(sayPong, nil)
		}
	}
}

// passLocks returns unless one of the locks that requests need is never given back.
func (t *tree) passLocks() {
	for _, mu := range []*sync.Mutex{&t.table.mu, &t.sequences.mu, &t.ahead.mu, &t.watch.mu, &t.textMu} {
		mu.Lock()
		mu.Unlock() //lint:ignore SA2001 that it can be had is all that is asked
	}
}

// leave makes every thread let go of the connection, in the middle of nothing: a request that is being copied when its
// process dies may fail. Requests that were read are answered to nobody, and sent again to the successor.
func (w *Worker) leave(fd int, served <-chan struct{}) {
	nobody, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(nobody, fd, unix.O_CLOEXEC)
	}
	threads, readErr := os.ReadDir("/proc/self/task")
	if err != nil || readErr != nil {
		return
	}
	for _, thread := range threads {
		// A thread that waits for a request begins its read anew, of what is under that number now.
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			unix.Tgkill(os.Getpid(), id, unix.SIGURG)
		}
	}
	select {
	case <-served:
	case <-time.After(leaveLimit): // a handler waits for a disk
	}
}

const leaveLimit = 50 * time.Millisecond

// notifyResend is FUSE_NOTIFY_RESEND, of Linux 6.9.
var notifyResend = []byte{0: 16, 4: 7, 15: 0}

// errorReply is what the kernel is told of a request that failed.
func errorReply(id uint64, errno unix.Errno) []byte {
	reply := make([]byte, 16)
	binary.NativeEndian.PutUint32(reply, 16)
	binary.NativeEndian.PutUint32(reply[4:], uint32(-int32(errno)))
	binary.NativeEndian.PutUint64(reply[8:], id)
	return reply
}

// handshake makes a server on the connection, and returns its descriptor of it. The kernel says only once how a connection
// begins, to the first worker. Each later one is told the same, over a socket, and has to give the same answer.
func (w *Worker) handshake(t *tree, log *slog.Logger) (server *fuse.Server, fd int, err error) {
	buf := make([]byte, 64<<10)
	first := len(w.block.request.get()) == 0
	if first {
		n, err := unix.Read(w.connection, buf)
		if err != nil {
			return nil, 0, fmt.Errorf("the kernel's first request: %w", err)
		}
		w.block.request.set(buf[:n])
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	if _, err := unix.Write(pair[0], w.block.request.get()); err != nil {
		return nil, 0, err
	}
	server, err = fuse.NewServer(t, fmt.Sprintf("/dev/fd/%d", pair[1]), &fuse.MountOptions{
		MaxWrite:                maxRequest,
		MaxInflightRequestBytes: 64 << 20,
		// Reading ahead of a split whose files do not answer must not keep the others from it.
		MaxBackground: 512,
		// Replies are made in memory: splicing them would be one copy more, through a pipe.
		DisableSplice: true,
		// A file's pages are dropped when we say so, not when its attributes seem to change.
		ExplicitDataCacheControl: true,
		DisableXAttrs:            true,
		DisableReadDirPlus:       true,
		Name:                     "batchfs",
		Logger:                   stdlog.New(warnings{log}, "", 0),
		PanicHandler: func(r any) fuse.Status {
			log.Error("a request panicked; its reader gets an error, and another process goes on", "panic", r, "stack", string(debug.Stack()))
			t.giveUp()
			return fuse.EIO
		},
	})
	if err != nil {
		return nil, 0, err
	}
	n, err := unix.Read(pair[0], buf)
	switch {
	case err != nil:
		return nil, 0, err
	case first:
		w.block.answer.set(buf[:n])
	case !bytes.Equal(buf[:n], w.block.answer.get()):
		return nil, 0, errors.New("this version of batchfs agrees on something else with the kernel than the one that mounted: unmount, and mount anew")
	}
	if err := unix.Dup3(w.connection, pair[1], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}
	if first {
		if _, err := unix.Write(w.connection, w.block.answer.get()); err != nil {
			return nil, 0, fmt.Errorf("the answer to the kernel's first request: %w", err)
		}
	}
	return server, pair[1], nil
}

// warnings passes on what go-fuse has to say.
type warnings struct{ log *slog.Logger }

func (w warnings) Write(line []byte) (int, error) {
	for _, harmless := range []string{
		"Write/Writev failed, err: 2=",      // the reader was killed meanwhile, or answered in the handler's place
		"Failed to read from fuse conn: 9=", // another process takes over
	} {
		if bytes.Contains(line, []byte(harmless)) {
			return len(line), nil
		}
	}
	w.log.Warn(strings.TrimSpace(string(line)))
	return len(line), nil
}

// A socket is one end of what a keeper and a worker talk over.
type socket struct {
	fd  int
	buf [4096]byte // of who hears
}

// say sends a message, with a file unless that is nil.
func (s *socket) say(what string, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	for {
		if err := unix.Sendmsg(s.fd, []byte(what), rights, nil, unix.MSG_NOSIGNAL); err != unix.EINTR {
			return err
		}
	}
}

var errGone = errors.New("the other process is gone")

// hear waits for a message.
func (s *socket) hear() (what string, file *os.File, err error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, nc, _, _, err := unix.Recvmsg(s.fd, s.buf[:], control, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, nc, _, _, err = unix.Recvmsg(s.fd, s.buf[:], control, unix.MSG_CMSG_CLOEXEC)
	}
	if err == nil && n == 0 {
		err = errGone
	}
	if err != nil {
		return "", nil, err
	}
	if nc > 0 {
		if file, err = fileOf(control[:nc]); err != nil {
			return "", nil, err
		}
	}
	return string(s.buf[:n]), file, nil
}

// fileOf is the file that came with a message.
func fileOf(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil, fmt.Errorf("no descriptor came (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no descriptor came (%v)", err)
	}
	return os.NewFile(uintptr(fds[0]), "received"), nil
}
