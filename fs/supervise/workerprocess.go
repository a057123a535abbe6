package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"batchfs/internal/fdpass"
	"batchfs/internal/process"
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

// A workerProcess is a worker as its supervisor sees it.
type workerProcess struct {
	cmd      *exec.Cmd
	conn     *net.UnixConn
	messages chan message  // of the worker; closed with its end of the socket
	ended    chan struct{} // closed when the process has ended

	from        *os.File      // the snapshot that it begins from
	cpu         time.Duration // processor time that it had got when worked was last called
	startupTime time.Duration // how long it has worked to get ready
	isReload    bool          // it was started for a restart, and does not serve yet
	isPrepared  bool          // it could serve
	isPromoted  bool          // it was told to serve
	serves      bool
	published   *os.File // the snapshot that it published before it served, or nil
}

func startWorker(cmd *exec.Cmd, connection, memory, snapshot *os.File) (*workerProcess, error) {
	ours, theirs, err := fdpass.Pair()
	if err != nil {
		return nil, err
	}
	p := &workerProcess{
		cmd: cmd, conn: ours, messages: make(chan message, maxMessages), ended: make(chan struct{}), from: snapshot,
	}
	cmd.ExtraFiles = append([]*os.File{connection, memory, theirs, snapshot}, cmd.ExtraFiles...)
	// A group of its own: Ctrl-C is for the supervisor, which then unmounts.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close() // or the socket would stay open after the worker ended
	if err != nil {
		ours.Close()
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
		if text != msgSnapshot || file != nil { // or this process had no free descriptor for it
			p.messages <- message{text, file}
		}
	}
	close(p.messages)
	p.cmd.Wait()
	p.conn.Close()
	close(p.ended)
}

// send sends a message. An error means that the process has ended, which its socket tells too.
func (p *workerProcess) send(text string) error { return fdpass.Send(p.conn, text, nil) }

// inbox is where messages arrive; nil, on which nothing does, if there is no process.
func (p *workerProcess) inbox() <-chan message {
	if p == nil {
		return nil
	}
	return p.messages
}

// runnableTime returns how long this process could work in a while that has passed: all of it, or only the processor time that it got if its
// threads wait for a processor. So a busy machine makes no worker late, and a worker that hangs is late.
func (p *workerProcess) runnableTime(while time.Duration) time.Duration {
	stat, err := process.ReadStat(process.Dir(p.cmd.Process.Pid))
	if err != nil {
		return while
	}
	got := stat.CPU - p.cpu
	p.cpu = stat.CPU
	if p.hasThread("R") {
		return min(got, while)
	}
	return while
}

// isOverdue is called every checkEvery while a worker gets ready.
func (p *workerProcess) isOverdue(limit time.Duration) bool {
	p.startupTime += p.runnableTime(checkEvery)
	return p.startupTime > limit
}

// failure kills a process that sent m instead of what was expected, and says why it does not serve.
func (p *workerProcess) failure(m message) error {
	p.kill()
	if reason, refused := strings.CutPrefix(m.text, msgRefused); refused {
		return errors.New(reason)
	}
	err := errors.New(p.howEnded())
	if !p.serves {
		err = fmt.Errorf("the process that was to serve ended (%w)", err)
	}
	if m.text == "" && p.isResourceFailure() {
		return resourceError{err}
	}
	return err
}

// A resourceError is why no worker serves if the machine is short of memory or of processes. The next worker may find it better.
type resourceError struct{ error }

// isResourceFailure says whether the machine is to blame for the end of a worker that ended by itself: it was killed as it is when memory
// runs out; or, before it served, with the status of a Go program that got no thread or no memory.
func (p *workerProcess) isResourceFailure() bool {
	status := p.status()
	return status.Signaled() && status.Signal() == syscall.SIGKILL || status.ExitStatus() == 2 && !p.serves
}

func (p *workerProcess) howEnded() string {
	if status := p.status(); status.Signaled() {
		return fmt.Sprintf("killed by signal %d", status.Signal())
	} else {
		return fmt.Sprintf("exit status %d", status.ExitStatus())
	}
}

// status is how a process ended, or its first thread if others have not.
func (p *workerProcess) status() syscall.WaitStatus {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	default:
	}
	if status, isDying := p.isDying(); isDying {
		return status
	}
	return syscall.WaitStatus(syscall.SIGKILL)
}

// isDying says how the first thread has ended, while others have not.
func (p *workerProcess) isDying() (syscall.WaitStatus, bool) {
	stat, err := process.ReadStat(process.Dir(p.cmd.Process.Pid))
	return stat.Ended, err == nil && stat.State == 'Z'
}

const (
	// A worker that was told to end is waited for so long.
	leavingLimit = 2 * time.Second
	// Killed threads that wait for a processor are waited for so long: a late write of theirs must not race with the next worker.
	killedLimit = 20 * time.Second
)

// kill may end a process that is answering requests: no read fails by that.
func (p *workerProcess) kill() {
	p.cmd.Process.Kill()
	p.awaitEnd(killedLimit)
}

// awaitEnd waits for a process that was told to end. It does not wait for threads that cannot be killed because they wait for a
// disk, or in the kernel for a request that only the next worker will answer: these do nothing else any more.
func (p *workerProcess) awaitEnd(limit time.Duration) {
	const every, enough = 2 * time.Millisecond, 10
	stuck := 0 // looks in a row that found such threads and no others
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

// hasThread says whether a thread is in one of these states.
func (p *workerProcess) hasThread(states string) bool {
	pid := p.cmd.Process.Pid
	return slices.ContainsFunc(process.Threads(pid), func(thread int) bool {
		stat, err := process.ReadStat(fmt.Sprintf("%s/task/%d", process.Dir(pid), thread))
		return err == nil && strings.IndexByte(states, stat.State) >= 0
	})
}
