// Package supervise keeps a mount while the processes that serve it come and go.
//
// [Run] is the supervisor: it mounts, holds the connection to the kernel and the shared state, and serves nothing itself. It
// runs one worker that serves and one standby, which it promotes when the worker ends or hangs. A worker calls [ConnectSupervisor].
// They talk in short messages over a socket.
package supervise

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/clock"
)

// Options are what a supervisor depends on.
type Options struct {
	// Connection is the connection of a mount that another process made, as mount.HandedOver returns it, or nil to mount. Run closes it.
	Connection *os.File
	AllowOther bool // users other than the one that mounts may read, as far as the files' permissions let them
	// Worker returns the command of a worker, a process that calls ConnectSupervisor. The supervisor adds descriptors; the command's
	// own begin at ExtraFd. reload asks for a worker that reads the program and the configuration as they are now.
	Worker   func(reload bool) *exec.Cmd
	Snapshot *os.File         // what the first worker begins from; Run closes it
	Restart  <-chan os.Signal // replaces the worker
	Stop     <-chan os.Signal // unmounts; a second signal ends the mount at once
	Grace    time.Duration    // how long open files may be read on when the mount ends
	NoResend bool             // do as on kernels that do not send again what a dead worker left unanswered

	Serving   func(*state.Shared) // called when batches can be read for the first time
	Restarted func(pid int)       // called when a worker serves that a restart started
	Stopping  func()              // called when the mount begins to end
	Log       *slog.Logger
}

// Run's goroutine alone uses a supervisor.
type supervisor struct {
	Options
	mounted    *mount.Mounted
	connection *os.File
	shared     *state.Shared
	memory     *os.File // of shared

	worker  *workerProcess // that serves or gets ready to, or nil until another is due
	standby *workerProcess // that stands by, or will, or is for a restart; or nil
	retryAt time.Time

	servingSince  time.Time     // when a worker last began to serve; zero: none has yet
	repliesBefore uint64        // requests that were answered until then
	unresponsive  time.Duration // how long the worker has worked since it answered a ping

	lastFailure error     // why the last worker that served does no longer, until another serves
	failedAt    time.Time // when it ended

	// Since a worker last answered a request, or was settled:
	attempts int  // to have one serve
	failures int  // of these, of the workers' own; the machine's are not counted
	warned   bool // it is logged that the machine lets no worker serve

	backOff           time.Duration // before the second attempt; then twice that, …, maxBackOff
	pingEvery         time.Duration
	unresponsiveLimit time.Duration // a worker hangs that could work for so long and did not answer a ping

	ending time.Time // end of the grace period; zero: the mount should not end
}

const (
	// So many messages of a worker may wait for the supervisor. A worker sends few: pongs and snapshots.
	maxMessages = 64
	// A worker that gets ready may work for so long.
	startLimit = 20 * time.Second
	// The supervisor looks this often for what no message tells.
	checkEvery = 50 * time.Millisecond
	// A worker that has served for so long did not fail at once, also if there was no request to answer.
	settled = 200 * time.Millisecond
	// So many workers in a row may fail at once.
	maxFailures = 10
	maxBackOff  = time.Second
	// The supervisor of a mount needs no more threads.
	enoughThreads = 8
)

func newSupervisor(o Options, mounted *mount.Mounted, connection *os.File, shared *state.Shared, memory *os.File) *supervisor {
	return &supervisor{
		Options: o, mounted: mounted, connection: connection, shared: shared, memory: memory,
		backOff: 10 * time.Millisecond, pingEvery: time.Second, unresponsiveLimit: 3 * time.Second,
	}
}

// Run mounts at an absolute path and runs a worker that serves until the mount ends. It returns
// nil if the mount was unmounted or Stop ended it, and ErrInterrupted if Stop ended it before a
// worker served. Run does not unmount what another process mounted; when the connection ends, the
// readers of such a mount get errors.
func Run(mountpoint string, o Options) error {
	// The kernel kills a worker when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	reserveThreads()
	memory, shared, err := state.New()
	if err != nil {
		return err
	}
	var mounted *mount.Mounted
	connection := o.Connection
	if connection == nil {
		mounted, connection, err = mount.Connect(mountpoint, o.AllowOther)
	} else {
		mounted, err = mount.Adopt(mountpoint, shared)
	}
	if err != nil {
		return err
	}
	shared.Supervisor.Store(int64(os.Getpid()))
	s := newSupervisor(o, mounted, connection, shared, memory)
	defer func() { // a remount and a worker replace them
		s.connection.Close()
		s.Snapshot.Close()
	}()
	err = s.serve()
	if busy := s.mounted.Unmount(true); busy != nil && !errors.Is(busy, unix.EBUSY) {
		err = errors.Join(err, busy) // EBUSY means that another file system is mounted over this one
	}
	return err
}

// reserveThreads makes all the threads that this process will need, which Go keeps. It would end the process, and the mount, if it
// needed another one while the machine gave none.
func reserveThreads() {
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0))) // or Go uses as many as there are processors now and then
	var made sync.WaitGroup
	made.Add(enoughThreads)
	for range enoughThreads {
		go func() {
			runtime.LockOSThread() // so that each waits in a thread of its own
			made.Done()
			made.Wait()
			runtime.UnlockOSThread()
		}()
	}
	made.Wait()
}

func (s *supervisor) serve() error {
	defer s.killWorkers()
	err := s.run()
	switch {
	case s.servingSince.IsZero() && errors.Is(err, errStopped):
		return ErrInterrupted
	case s.servingSince.IsZero():
		return fmt.Errorf("cannot serve %s: %w", s.mounted.Mountpoint, err)
	case errors.Is(err, errOver):
	case !errors.Is(err, errStopped):
		s.Log.Error("the mount ends: its readers get errors", "err", err)
		return err
	case s.Connection != nil:
		s.Log.Warn("the connection ends, and the mount is left to whoever made it: until they unmount, its readers get errors")
	}
	return nil
}

func (s *supervisor) killWorkers() {
	for _, p := range s.processes() {
		p.kill()
	}
}

func (s *supervisor) processes() []*workerProcess {
	return slices.DeleteFunc([]*workerProcess{s.worker, s.standby}, func(p *workerProcess) bool { return p == nil })
}

// run keeps a worker serving. It returns why the mount ends: errOver, errStopped, or another error.
func (s *supervisor) run() error {
	ping, look := time.NewTicker(s.pingEvery), time.NewTicker(checkEvery)
	defer ping.Stop()
	defer look.Stop()
	for !s.isGone() {
		if s.worker == nil && !time.Now().Before(s.retryAt) {
			if err := s.begin(false); err != nil {
				return err
			}
		}
		restart := s.Restart
		if s.worker == nil || !s.worker.serves {
			restart = nil // until it is
		}
		var err error
		select {
		case <-restart:
			s.restart()
		case <-s.Stop:
			err = s.stop()
		case m := <-s.worker.inbox():
			err = s.received(s.worker, m)
		case m := <-s.standby.inbox():
			err = s.received(s.standby, m)
		case <-ping.C:
			err = s.ping()
		case <-look.C:
			err = s.checkProcesses()
		}
		if err != nil {
			return err
		}
	}
	return errOver
}

// received obeys a message of a process. The zero message says that the process has ended.
func (s *supervisor) received(p *workerProcess, m message) error {
	switch {
	case m.text == msgSnapshot && p.serves:
		s.setSnapshot(m.file)
	case m.text == msgSnapshot:
		p.published = m.file
	case m.text == msgPrepared:
		p.isPrepared = true
		if p == s.worker {
			return s.promote()
		} else if p.isReload {
			return s.handOver()
		}
	case m.text == msgServing && p.isPromoted:
		s.serving()
	case m.text == msgPong:
		s.unresponsive = 0
		s.shared.Heartbeat.Store(clock.Now())
	case p.serves && strings.HasPrefix(m.text, msgRefused):
		s.Log.Error("the worker cannot serve any longer", "err", strings.TrimPrefix(m.text, msgRefused))
	default:
		return s.workerFailed(p, p.failure(m))
	}
	return nil
}

// ping counts pings and not the time, because this process may have been stopped for a while, and of a ping only what the worker
// could work.
func (s *supervisor) ping() error {
	if s.standby != nil {
		s.shared.Standby.Store(int64(s.standby.cmd.Process.Pid))
	}
	if s.worker == nil || !s.worker.serves {
		return nil
	}
	if s.unresponsive += s.worker.runnableTime(s.pingEvery); s.unresponsive > s.unresponsiveLimit {
		return s.workerFailed(s.worker, errors.New("it did not answer"))
	}
	s.worker.send(msgPing)
	s.ensureStandby()
	return nil
}

// checkProcesses finds what no message tells: that a process has ended while threads of it that cannot be killed keep its socket open, or is
// late; and, in the grace period, whether files are still open.
func (s *supervisor) checkProcesses() error {
	for _, p := range s.processes() {
		limit := startLimit
		if p.isPromoted {
			limit = s.unresponsiveLimit
		}
		_, isDying := p.isDying()
		switch {
		case isDying:
			return s.workerFailed(p, p.failure(message{}))
		case !p.serves && p.isPrepared == p.isPromoted && p.isOverdue(limit) && len(p.messages) == 0: // or this process is late
			return s.workerFailed(p, fmt.Errorf("the process that was to serve did not get ready within %v", limit))
		}
	}
	if !s.ending.IsZero() {
		return s.tryToEnd()
	}
	return nil
}
