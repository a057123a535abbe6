package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/fs/state"
	"batchfs/internal/failure"
	"batchfs/internal/fdpass"
	"batchfs/internal/process"
)

// These are the messages, with their senders. Their texts never change, because supervisor and
// worker can be of different versions.
const (
	msgPrepared = "prepared" // worker: ready to serve
	msgServe    = "serve"    // supervisor: begin to serve
	msgServing  = "serving"  // worker: requests are being served
	msgLeave    = "go"       // supervisor: exit, so that another worker can serve
	msgPing     = "ping"     // supervisor
	msgPong     = "pong"     // worker
	msgSnapshot = "snapshot" // worker: a snapshot for new workers is attached
	msgRefused  = "refused " // worker: exits because it cannot serve, for the reason that follows
)

type message struct {
	text string
	file *os.File // snapshot, or nil
}

// These are the descriptors that a worker inherits from its supervisor.
const (
	connectionFd = 3 + iota
	sharedFd
	socketFd
	snapshotFd
	// ExtraFd is the first descriptor from the command's own ExtraFiles: see Options.WorkerCommand.
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

// A workerProcess is the supervisor's view of a worker or standby. The process can end in any of
// these states:
//
//	state      flag         entered when
//	starting   -            the process is started
//	prepared   isPrepared   it sends msgPrepared
//	promoted   isPromoted   the supervisor sends msgServe
//	serving    isServing    it sends msgServing
//
// Except for listen, a workerProcess belongs to the supervisor's goroutine.
type workerProcess struct {
	cmd      *exec.Cmd
	conn     *net.UnixConn
	messages chan message  // closed when the process closes its socket
	ended    chan struct{} // closed when the process has ended

	snapshot          *os.File      // snapshot that the process started from
	publishedSnapshot *os.File      // snapshot that it sent before it served
	cpuTime           time.Duration // processor time at the last call of runnableTime
	startupTime       time.Duration // runnable time spent getting ready
	lastMessage       string        // last message that was read when it failed; empty before that
	isRestart         bool          // whether it belongs to a restart in progress
	isPrepared        bool
	isPromoted        bool
	isServing         bool
}

func startWorker(cmd *exec.Cmd, connection, memory, snapshot *os.File) (*workerProcess, error) {
	ours, theirs, err := fdpass.Pair()
	if err != nil {
		return nil, err
	}
	p := &workerProcess{
		cmd: cmd, conn: ours, messages: make(chan message, maxMessages), ended: make(chan struct{}), snapshot: snapshot,
	}
	cmd.ExtraFiles = append([]*os.File{connection, memory, theirs, snapshot}, cmd.ExtraFiles...)
	// Because of Setpgid, Ctrl-C reaches only the supervisor, which then unmounts.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close() // an open copy would keep the socket open when the process ends
	if err != nil {
		ours.Close()
		if failed := (*fs.PathError)(nil); errors.As(err, &failed) && failed.Path == cmd.Path {
			failed.Path = cmd.Args[0] // cmd.Path may name a descriptor
		}
		return nil, err
	}
	go p.listen()
	return p, nil
}

func (p *workerProcess) listen() {
	for {
		text, file, err := fdpass.Receive(p.conn)
		if err != nil {
			break
		}
		p.messages <- message{text, file}
	}
	close(p.messages)
	p.cmd.Wait()
	p.conn.Close()
	close(p.ended)
}

// send sends a message. It fails if the process has ended.
func (p *workerProcess) send(text string) error { return fdpass.Send(p.conn, text, nil) }

// inbox returns p.messages; p can be nil.
func (p *workerProcess) inbox() <-chan message {
	if p == nil {
		return nil
	}
	return p.messages
}

// runnableTime returns how long the process could run within a period that has just passed: the
// processor time that it got if one of its threads is runnable, or else the whole period. So a
// worker on a busy machine is not mistaken for one that hangs.
func (p *workerProcess) runnableTime(period time.Duration) time.Duration {
	stat, err := process.ReadStat(process.Dir(p.cmd.Process.Pid))
	if err != nil {
		return period
	}
	got := stat.CPU - p.cpuTime
	p.cpuTime = stat.CPU
	if p.hasThread("R") {
		return min(got, period)
	}
	return period
}

// isOverdue reports whether the process took too long to get ready. Call it every checkEvery.
func (p *workerProcess) isOverdue(limit time.Duration) bool {
	p.startupTime += p.runnableTime(checkEvery)
	return p.startupTime > limit
}

// readLastMessages reads the messages that were queued when a process ended, up to msgServing;
// readLastSnapshots reads the later ones. It reports whether the process has served.
func (p *workerProcess) readLastMessages() (served bool) {
	for !p.isServing && len(p.messages) > 0 {
		m := <-p.messages
		m.file.Close() // of a snapshot that no worker has served
		p.lastMessage = m.text
		p.isServing = m.text == msgServing
	}
	return p.isServing
}

// exitError returns why a process has ended by itself. readLastMessages must have been called.
func (p *workerProcess) exitError() error {
	if reason, refused := strings.CutPrefix(p.lastMessage, msgRefused); refused {
		return failure.OfStatus(p.status().ExitStatus()).Wrap(errors.New(reason))
	}
	err := errors.New(p.describeExit())
	if !p.isServing {
		err = fmt.Errorf("the new worker exited before it was serving (%w)", err)
	}
	if p.isResourceFailure() {
		return resourceError{err}
	}
	return err
}

// A resourceError means that a worker could not be started, or failed for lack of memory or
// processes. Another attempt may succeed.
type resourceError struct{ error }

func (e resourceError) Unwrap() error { return e.error }

func isShortage(err error) bool {
	_, ok := errors.AsType[resourceError](err)
	return ok
}

// isResourceFailure reports whether a process that ended by itself lacked memory or threads: the
// kernel sends SIGKILL when memory runs out, and Go exits with status 2 if it gets no thread or
// memory at the start.
func (p *workerProcess) isResourceFailure() bool {
	status := p.status()
	return status.Signaled() && status.Signal() == syscall.SIGKILL || status.ExitStatus() == 2 && !p.isServing
}

func (p *workerProcess) describeExit() string {
	if status := p.status(); status.Signaled() {
		return fmt.Sprintf("killed by signal %d", status.Signal())
	} else {
		return fmt.Sprintf("exit status %d", status.ExitStatus())
	}
}

// status returns how the process ended or, if threads remain, how its main thread did.
func (p *workerProcess) status() syscall.WaitStatus {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	default:
	}
	if status, isDying := p.mainThreadStatus(); isDying {
		return status
	}
	return syscall.WaitStatus(syscall.SIGKILL)
}

// mainThreadStatus reports whether and how the main thread has ended. Others may remain.
func (p *workerProcess) mainThreadStatus() (syscall.WaitStatus, bool) {
	stat, err := process.ReadStat(process.Dir(p.cmd.Process.Pid))
	return stat.ExitStatus, err == nil && stat.HasEnded()
}

const (
	leavingLimit = 2 * time.Second  // time for a worker to exit after msgLeave
	killedLimit  = 20 * time.Second // time for a killed process to end
)

// kill kills the process and waits for its end. Its last messages may still be queued.
func (p *workerProcess) kill() {
	p.cmd.Process.Kill()
	p.awaitEnd(killedLimit)
}

// awaitEnd waits until the process ends, so that it cannot write to the shared memory while the
// next worker does. It gives up early if all remaining threads are stuck in the kernel, where they
// wait for a disk or for a request that the next worker must answer. They do nothing else.
func (p *workerProcess) awaitEnd(limit time.Duration) {
	const every, enough = 2 * time.Millisecond, 10
	stuck := 0 // consecutive checks that found only stuck threads
	for end := time.Now().Add(limit); stuck < enough && time.Now().Before(end); {
		select {
		case <-p.ended:
			return
		case <-time.After(every):
		}
		if stuck++; p.hasThread("RST") || !p.hasThread("D") {
			stuck = 0
		}
	}
}

// hasThread reports whether any thread is in one of these /proc states, such as R, S, D or T.
func (p *workerProcess) hasThread(states string) bool {
	pid := p.cmd.Process.Pid
	return slices.ContainsFunc(process.Threads(pid), func(thread int) bool {
		stat, err := process.ReadStat(fmt.Sprintf("%s/task/%d", process.Dir(pid), thread))
		return err == nil && strings.IndexByte(states, stat.State) >= 0
	})
}
