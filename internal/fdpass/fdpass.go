// Package fdpass passes files to other processes, over Unix sockets.
package fdpass

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const maxMessage = 4096 // bytes

// Pair returns both ends of a socket whose messages arrive whole.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "socket")
	if ours, err = Connect(os.NewFile(uintptr(pair[0]), "socket")); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// Connect makes a connection of an end of a socket, and closes the file. Who waits for a message keeps no thread waiting: the machine
// may not let this process have another one.
func Connect(end *os.File) (*net.UnixConn, error) {
	defer end.Close()
	conn, err := net.FileConn(end)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Send sends a message, cut to what the receiver takes, with a file unless that is nil.
func Send(to *net.UnixConn, message string, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err := to.WriteMsgUnix([]byte(message[:min(len(message), maxMessage)]), rights, nil)
	return err
}

// Receive waits for a message. The error is io.EOF when the other end is closed. file is the one that was sent with the message, or nil, also
// if this process had no free descriptor.
func Receive(from *net.UnixConn) (message string, file *os.File, err error) {
	buf, control := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	n, rights, _, _, err := from.ReadMsgUnix(buf, control)
	if err != nil {
		return "", nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:rights])
	if err == nil && len(messages) > 0 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			file = os.NewFile(uintptr(fds[0]), "received")
		}
	}
	return string(buf[:n]), file, nil
}
