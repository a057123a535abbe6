package supervise

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The messages of supervisor and worker.
const (
	msgPrepared = "prepared" // worker: it could serve
	msgServe    = "serve"    // supervisor: serve, nobody else does any more
	msgServing  = "serving"  // worker
	msgGo       = "go"       // supervisor: end, another process will serve
	msgPing     = "ping"     // supervisor
	msgPong     = "pong"     // worker
	msgSnapshot = "snapshot" // worker: a file for its successors to begin from
	msgRefused  = "refused " // worker: it cannot serve; the reason follows
)

// A supervisor pings the worker that serves this often.
const pingEvery = time.Second

// A message is what one of them sends the other.
type message struct {
	text string
	file *os.File // that comes with a snapshot, or nil
}

// A socket is one end of what a supervisor and a worker talk over. One goroutine at a time may receive.
type socket struct {
	file *os.File
	buf  [4096]byte
}

// newSockets returns the two ends, and the one for the other process as a file. A receiver at this end keeps no thread waiting,
// which could be one more than the machine lets this process have.
func newSockets() (ours *socket, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	unix.SetNonblock(pair[0], true)
	return &socket{file: os.NewFile(uintptr(pair[0]), "worker")}, os.NewFile(uintptr(pair[1]), "supervisor"), nil
}

// send sends a message, cut to what the other end can receive, with a file unless that is nil.
func (s *socket) send(text string, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	text = text[:min(len(text), len(s.buf))]
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(fd uintptr) {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Sendmsg(int(fd), []byte(text), rights, nil, unix.MSG_NOSIGNAL)
		}
	})
	return errors.Join(controlErr, err)
}

var errGone = errors.New("the other process is gone")

// receive waits for a message. It skips a snapshot that lost its file because this process had no free descriptor.
func (s *socket) receive() (message, error) {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return message{}, err
	}
	for {
		control := make([]byte, unix.CmsgSpace(4))
		var n, nc int
		readErr := conn.Read(func(fd uintptr) (done bool) {
			n, nc, _, _, err = unix.Recvmsg(int(fd), s.buf[:], control, unix.MSG_CMSG_CLOEXEC)
			return err != unix.EAGAIN
		})
		switch {
		case readErr != nil:
			return message{}, readErr
		case err == unix.EINTR:
			continue
		case err != nil:
			return message{}, err
		case n == 0:
			return message{}, errGone
		}
		m := message{text: string(s.buf[:n]), file: attached(control[:nc])}
		if m.text == msgSnapshot && m.file == nil {
			continue
		}
		return m, nil
	}
}

// attached is the file that came with a message, or nil.
func attached(control []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "received")
}
