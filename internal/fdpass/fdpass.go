// Package fdpass passes open files to other processes over Unix sockets.
package fdpass

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const maxMessage = 4096 // bytes

// Pair returns both ends of a new socket pair, which preserves message boundaries.
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

// Connect turns one end of a socket pair into a connection, and closes end. Waiting for a message
// on the connection occupies no thread, which matters if the process can start no more threads.
func Connect(end *os.File) (*net.UnixConn, error) {
	defer end.Close()
	conn, err := net.FileConn(end)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Send sends a message, truncated to 4096 bytes, and the file unless it is nil.
func Send(to *net.UnixConn, message string, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err := to.WriteMsgUnix([]byte(message[:min(len(message), maxMessage)]), rights, nil)
	return err
}

// Receive waits for a message. The error is io.EOF if the other end is closed. The file is nil if
// none was sent, or if this process had no free descriptor.
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
