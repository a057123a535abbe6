// Package fdpass passes files to other processes, over Unix sockets.
package fdpass

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns both ends of a socket whose messages arrive whole. A receiver at our end keeps no thread waiting: the machine may
// not let this process have another one.
func Pair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	unix.SetNonblock(pair[0], true)
	return os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket"), nil
}

// Send sends a message, with a file unless that is nil. The receiver is not signalled when the other end is closed.
func Send(socket *os.File, message []byte, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(fd uintptr) {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_NOSIGNAL)
		}
	})
	return errors.Join(controlErr, err)
}

// Receive waits for a message, and reads as much as buf holds: n is 0 when the other end is closed. file is the one that was sent with
// it, or nil, also if this process had no free descriptor.
func Receive(socket *os.File, buf []byte) (n int, file *os.File, err error) {
	conn, err := socket.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	control := make([]byte, unix.CmsgSpace(4))
	var rights int
	readErr := conn.Read(func(fd uintptr) (done bool) {
		for err = unix.EINTR; err == unix.EINTR; {
			n, rights, _, _, err = unix.Recvmsg(int(fd), buf, control, unix.MSG_CMSG_CLOEXEC)
		}
		return err != unix.EAGAIN
	})
	if err := errors.Join(readErr, err); err != nil {
		return 0, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:rights])
	if err != nil || len(messages) == 0 {
		return n, nil, nil
	}
	if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
		file = os.NewFile(uintptr(fds[0]), "received")
	}
	return n, file, nil
}
