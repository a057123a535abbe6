package fs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A child is a worker's process, as its keeper sees it.
type child struct {
	cmd     *exec.Cmd
	control *socket
	said    chan saying   // what it says; closed with its end of the socket
	ended   chan struct{} // closed when the process has ended

	anew     bool // it was asked for, to replace the worker; or else it stands by
	began    time.Time
	from     *os.File // the snapshot that it begins from
	prepared bool     // it could serve
	snapshot *os.File // that it published before it served, or nil
}

// A saying is what a worker says, and the file that comes with a snapshot.
type saying struct {
	what string
	file *os.File
}

// listen hears what a worker says until it has ended.
func (c *child) listen() {
	for {
		what, file, err := c.control.hear()
		if err != nil {
			break
		}
		if what == saySnapshot && file == nil {
			continue // there was no descriptor left for it
		}
		c.said <- saying{what, file}
	}
	close(c.said)
	c.cmd.Wait()
	unix.Close(c.control.fd)
	close(c.ended)
}

func tooLate(limit time.Duration) error {
	return fmt.Errorf("the process that was to serve did not get ready within %v", limit)
}

// await returns nil when a worker that does not serve yet says what it is expected to. Otherwise it is ended.
func (c *child) await(what string, limit time.Duration) error {
	late := time.After(limit)
	for {
		select {
		case said := <-c.said: // or nothing, when it has ended
			switch {
			case said.what == saySnapshot:
				c.snapshot = said.file
			case said.what == what:
				return nil
			default:
				return c.why(said)
			}
		case <-late:
			c.kill()
			return tooLate(limit)
		}
	}
}

// why ends a worker, and says why it did not do what it should have.
func (c *child) why(said saying) error {
	c.kill()
	if reason, refused := strings.CutPrefix(said.what, sayRefused); refused {
		return errors.New(reason)
	}
	return fmt.Errorf("the process that was to serve ended (%s)", c.state())
}

// state is how a process ended.
func (c *child) state() string {
	select {
	case <-c.ended:
		return c.cmd.ProcessState.String()
	default:
		return "but for threads that wait in the kernel"
	}
}

// A thread that was killed ends as soon as a processor has time for it. What it does until then must not meet what comes next.
const killedLimit = 20 * time.Second

// kill ends a process that may be at work. It is stopped before, so that it is not killed while the kernel copies a request
// or an answer, which would fail.
func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGSTOP)
	for end := time.Now().Add(leavingLimit / 20); c.hasThread("RS") && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	c.cmd.Process.Kill()
	c.awaitEnd(killedLimit)
	if c.snapshot != nil {
		c.snapshot.Close()
		c.snapshot = nil
	}
}

// awaitEnd waits for a process that was told to end. Threads that cannot be killed, because they wait for a disk, or in the
// kernel for a request that only the next worker will answer, are not waited for: they do nothing else any more.
func (c *child) awaitEnd(limit time.Duration) {
	const every, enough = 2 * time.Millisecond, 10
	still := 0
	for end := time.Now().Add(limit); still < enough && time.Now().Before(end); {
		select {
		case <-c.ended:
			return
		case <-time.After(every):
		}
		if still++; c.hasThread("RST") {
			still = 0
		}
	}
}

// hasThread says whether a thread of the process is in one of these states.
func (c *child) hasThread(states string) bool {
	tasks := fmt.Sprintf("/proc/%d/task", c.cmd.Process.Pid)
	threads, _ := os.ReadDir(tasks)
	for _, thread := range threads {
		if strings.Contains(states, threadState(tasks+"/"+thread.Name())) {
			return true
		}
	}
	return false
}

// threadState is R, S, D, T, Z, …, and something else where there is no such thread.
func threadState(dir string) string {
	stat, err := os.ReadFile(dir + "/stat")
	if _, state, ok := strings.Cut(string(stat), ") "); err == nil && ok && state != "" {
		return state[:1]
	}
	return "gone"
}

// dying says whether the first thread has ended, and others have not.
func (c *child) dying() bool { return threadState(fmt.Sprintf("/proc/%d", c.cmd.Process.Pid)) == "Z" }
