package supervise

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"batchfs/fs/state"
	"batchfs/internal/fdpass"
)

// The descriptors that a supervisor hands to a worker.
const (
	connectionFd = 3 + iota
	sharedFd
	socketFd
	snapshotFd
	// ExtraFd is the first of the descriptors in the ExtraFiles that Options.Worker set.
	ExtraFd
)

// ErrReplaced says that another process serves the mount now, or that the mount ends. The worker should end.
var ErrReplaced = errors.New("another process serves")

// ErrPanicked says that a request panicked, and that another process should serve.
var ErrPanicked = errors.New("a request panicked")

// A Worker is this process as a worker of its supervisor.
type Worker struct {
	Snapshot   *os.File      // what the supervisor had last for a worker to begin from
	Shared     *state.Shared // of the mount
	Connection int           // descriptor of the connection to the kernel, /dev/fuse

	conn *net.UnixConn // to the supervisor
}

// ConnectSupervisor is for a process that a supervisor started. An error was told to the supervisor.
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
	raiseOOMScore()
	if w.Shared, err = state.Map(shared); err != nil {
		w.Refuse(err)
		return nil, err
	}
	return w, nil
}

// Refuse tells the supervisor why this process cannot serve.
func (w *Worker) Refuse(err error) { fdpass.Send(w.conn, msgRefused+err.Error(), nil) }

// Publish gives the supervisor a snapshot for successors to begin from. It closes the file.
func (w *Worker) Publish(snapshot *os.File) error {
	defer snapshot.Close()
	return fdpass.Send(w.conn, msgSnapshot, snapshot)
}

// AwaitPromotion waits until this process should serve. The error is ErrReplaced if that will never be.
func (w *Worker) AwaitPromotion() error {
	if err := fdpass.Send(w.conn, msgPrepared, nil); err != nil {
		return err
	}
	if text, _, err := fdpass.Receive(w.conn); err != nil || text != msgServe {
		return ErrReplaced
	}
	w.Shared.Worker.Store(int64(os.Getpid()))
	raiseOOMScore()
	return nil
}

// raiseOOMScore raises the score by which the kernel chooses whom to kill when memory is short. A process begins with its supervisor's, and
// calls this once to stand by and once to serve: no reader notices the death of the worker that serves.
func raiseOOMScore() {
	const file, step, most = "/proc/self/oom_score_adj", 250, 1000
	text, _ := os.ReadFile(file)
	if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		os.WriteFile(file, []byte(strconv.Itoa(min(now+step, most))), 0) // an error changes nothing for readers
	}
}

// Serving tells the supervisor that this process serves.
func (w *Worker) Serving() error { return fdpass.Send(w.conn, msgServing, nil) }

// AnswerPings answers pings until the supervisor tells this process to end, or is gone. check must block while requests cannot be
// answered.
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
