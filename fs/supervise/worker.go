package supervise

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"batchfs/fs/state"
	"batchfs/internal/fdpass"
)

// These are the descriptors that a worker inherits from its supervisor.
const (
	connectionFd = 3 + iota
	sharedFd
	socketFd
	snapshotFd
	// ExtraFd is the first descriptor from the command's own ExtraFiles: see Options.Worker.
	ExtraFd
)

// ErrReplaced means that a worker should exit, because another one serves or the mount ends.
var ErrReplaced = errors.New("another process is serving")

// ErrPanicked means that a worker should be replaced, because a request panicked.
var ErrPanicked = errors.New("a request panicked")

// A Worker connects a worker or standby to its supervisor. It is safe for concurrent use, but
// AwaitPromotion must return before AnswerPings is called.
type Worker struct {
	Snapshot   *os.File // supervisor's latest snapshot
	Shared     *state.Shared
	Connection int // descriptor of /dev/fuse

	conn *net.UnixConn // socket to the supervisor
}

// ConnectSupervisor returns the Worker of this process, which a supervisor must have started. An
// error in the shared memory is also reported to the supervisor.
func ConnectSupervisor() (*Worker, error) {
	for fd := connectionFd; fd <= ExtraFd; fd++ {
		unix.CloseOnExec(fd)
	}
	conn, err := fdpass.Connect(os.NewFile(socketFd, "supervisor"))
	if err != nil {
		return nil, err
	}
	w := &Worker{Snapshot: os.NewFile(snapshotFd, "snapshot"), Connection: connectionFd, conn: conn}
	shared := os.NewFile(sharedFd, "shared")
	defer shared.Close()
	if w.Shared, err = state.Map(shared); err != nil {
		w.Refuse(err)
		return nil, err
	}
	preferForOOM(w.Shared.OOMScore.Load(), false)
	return w, nil
}

// Refuse reports to the supervisor why this process cannot serve. The process must then exit, with
// the status of the kind of err.
func (w *Worker) Refuse(err error) { fdpass.Send(w.conn, msgRefused+err.Error(), nil) }

// Publish gives the supervisor a snapshot for new workers, and closes the file.
func (w *Worker) Publish(snapshot *os.File) error {
	defer snapshot.Close()
	return fdpass.Send(w.conn, msgSnapshot, snapshot)
}

// AwaitPromotion reports that this process is prepared, and waits until it should serve. It returns
// ErrReplaced if it never should.
func (w *Worker) AwaitPromotion() error {
	if err := fdpass.Send(w.conn, msgPrepared, nil); err != nil {
		return err
	}
	if text, _, err := fdpass.Receive(w.conn); err != nil || text != msgServe {
		return ErrReplaced
	}
	w.Shared.Worker.Store(int64(os.Getpid()))
	preferForOOM(w.Shared.OOMScore.Load(), true)
	return nil
}

// Serving reports to the supervisor that this process serves.
func (w *Worker) Serving() error { return fdpass.Send(w.conn, msgServing, nil) }

// AnswerPings answers pings until this process should exit: until the supervisor tells it to leave
// or has ended. check must block while this process cannot answer requests.
func (w *Worker) AnswerPings(check func()) {
	for {
		text, _, err := fdpass.Receive(w.conn)
		switch {
		case err != nil || text == msgLeave:
			return
		case text == msgPing:
			check()
			fdpass.Send(w.conn, msgPong, nil)
		}
	}
}
