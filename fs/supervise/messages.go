package supervise

import (
	"errors"
	"os"

	"batchfs/fs/fdpass"
)

const (
	msgPrepared = "prepared" // worker: it could serve
	msgServe    = "serve"    // supervisor: serve, no other worker does any more
	msgServing  = "serving"  // worker
	msgLeave    = "go"       // supervisor: end, another process will serve
	msgPing     = "ping"     // supervisor
	msgPong     = "pong"     // worker
	msgSnapshot = "snapshot" // worker: a file for its successors to begin from
	msgRefused  = "refused " // worker: it cannot serve; the reason follows
)

type message struct {
	text string
	file *os.File // the snapshot, or nil
}

// One goroutine at a time may receive from a socket.
type socket struct {
	file *os.File
	buf  [4096]byte
}

// send sends a message, cut to what the other end can receive, with a file unless that is nil.
func (s *socket) send(text string, file *os.File) error {
	return fdpass.Send(s.file, []byte(text[:min(len(text), len(s.buf))]), file)
}

// receive waits for a message. It skips a snapshot that lost its file because this process had no free descriptor.
func (s *socket) receive() (message, error) {
	for {
		n, file, err := fdpass.Receive(s.file, s.buf[:])
		switch text := string(s.buf[:n]); {
		case err != nil:
			return message{}, err
		case n == 0:
			return message{}, errors.New("the other process is gone")
		case text != msgSnapshot || file != nil:
			return message{text, file}, nil
		}
	}
}
