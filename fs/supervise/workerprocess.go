package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/fs/process"
)

// A workerProcess is a worker as its supervisor sees it.
type workerProcess struct {
	cmd      *exec.Cmd
	socket   *socket
	messages chan message  // of the worker; closed with its end of the socket
	ended    chan struct{} // closed when the process has ended

	reload    bool // it was started for a restart; otherwise it stands by
	began     time.Time
	from      *os.File // the snapshot that it begins from
	prepared  bool     // it could serve
	published *os.File // the snapshot that it published before it served, or nil
}

// listen receives what the worker sends until the process has ended.
func (p *workerProcess) listen() {
	for {
		m, err := p.socket.receive()
		if err != nil {
			break
		}
		p.messages <- m
	}
	close(p.messages)
	p.cmd.Wait()
	unix.Close(p.socket.fd)
	close(p.ended)
}

func errLate(limit time.Duration) error {
	return fmt.Errorf("the process that was to serve did not get ready within %v", limit)
}

// await returns nil when a worker that does not serve yet sends what it is expected to. A worker that ends, refuses, or sends
// nothing for as long as limit, is killed: the error says why.
func (p *workerProcess) await(text string, limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		select {
		case m := <-p.messages: // the zero message when it has ended
			switch m.text {
			case msgSnapshot:
				p.published = m.file
			case msgWorking:
				late.Reset(limit)
			case text:
				return nil
			default:
				return p.failure(m)
			}
		case <-late.C:
			if len(p.messages) > 0 { // it is this process that was late
				late.Reset(limit)
				continue
			}
			p.kill()
			return errLate(limit)
		}
	}
}

// failure kills a worker that sent m instead of what was expected, and says why it cannot serve.
func (p *workerProcess) failure(m message) error {
	p.kill()
	if reason, refused := strings.CutPrefix(m.text, msgRefused); refused {
		return errors.New(reason)
	}
	return fmt.Errorf("the process that was to serve ended (%s)", p.howEnded())
}

// howEnded says how a process ended that was killed or has ended by itself.
func (p *workerProcess) howEnded() string {
	select {
	case <-p.ended:
		return inWords(p.cmd.ProcessState.Sys().(syscall.WaitStatus))
	default:
		status := syscall.WaitStatus(syscall.SIGKILL)
		if stat, err := process.ReadStat(process.Dir(p.cmd.Process.Pid)); err == nil && stat.State == 'Z' {
			status = stat.Ended
		}
		return inWords(status) + "; threads of it still wait for a disk"
	}
}

func inWords(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("killed by signal %d", status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

const (
	// A worker that was told to end is waited for so long.
	leavingLimit = 2 * time.Second
	// Killed threads that wait for a processor are waited for so long: a late write of theirs must not race with the next worker.
	killedLimit = 20 * time.Second
)

// kill ends a process that may be answering requests. It is stopped first: a request or an answer that the kernel is copying
// when the process is killed would fail.
func (p *workerProcess) kill() {
	p.cmd.Process.Signal(syscall.SIGSTOP)
	for end := time.Now().Add(leavingLimit / 20); p.hasThread("RS") && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	p.cmd.Process.Kill()
	p.awaitEnd(killedLimit)
	if p.published != nil {
		p.published.Close()
		p.published = nil
	}
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

// hasThread says whether a thread of the process is in one of these states.
func (p *workerProcess) hasThread(states string) bool {
	tasks := process.Dir(p.cmd.Process.Pid) + "/task"
	threads, _ := os.ReadDir(tasks)
	for _, thread := range threads {
		stat, err := process.ReadStat(tasks + "/" + thread.Name())
		if err == nil && strings.IndexByte(states, stat.State) >= 0 {
			return true
		}
	}
	return false
}

// dying says whether the first thread has ended and others have not.
func (p *workerProcess) dying() bool {
	stat, err := process.ReadStat(process.Dir(p.cmd.Process.Pid))
	return err == nil && stat.State == 'Z'
}
