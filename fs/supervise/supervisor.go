// Package supervise keeps a mount while the processes that serve it come and go.
//
// [Run] is the supervisor: it mounts, holds the connection to the kernel and the shared state, and serves nothing itself. It
// runs one worker that serves and one standby, pings the one that serves, and gives the mount to the standby when that worker
// ends or hangs. On a restart it gives the mount to a new worker. A worker calls [ConnectSupervisor]. They talk in short
// messages over a socket.
package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"batchfs/fs/fdpass"
	"batchfs/fs/mount"
	"batchfs/fs/state"
)

// Options are what a supervisor depends on.
type Options struct {
	// Connection is that of a mount that somebody else made, as mount.HandedOver returns it, or nil to mount. Run closes it.
	Connection *os.File
	AllowOther bool // users other than the one that mounts may read, as far as the files' permissions let them
	// Worker returns the command of a worker, a process that calls ConnectSupervisor. The supervisor hands it descriptors; those of
	// the command itself begin at ExtraFd. reload asks for a worker that reads the program and the configuration as they are now.
	Worker   func(reload bool) *exec.Cmd
	Snapshot *os.File         // what the first worker begins from; Run closes it
	Restart  <-chan os.Signal // replaces the worker
	Stop     <-chan os.Signal // unmounts; a second signal ends the mount at once
	Grace    time.Duration    // how long open files may be read on when the mount ends
	NoResend bool             // do as on kernels that do not send again what a dead worker left unanswered

	Serving   func()        // called when batches can be read for the first time
	Restarted func(pid int) // called when a worker serves that a restart started
	Stopping  func()        // called when the mount begins to end
	Log       *slog.Logger
}

// A supervisor holds a mount while workers come and go. Run's goroutine alone uses it.
type supervisor struct {
	Options
	mountpoint string
	mounted    *mount.Mounted
	connection *os.File
	shared     *state.Shared
	memory     *os.File // of shared

	worker   *workerProcess
	began    time.Time     // when the worker began to serve
	answered uint64        // requests, before it did
	silent   time.Duration // how long the worker has worked since it answered a ping

	// Since a worker last answered a request, or was settled:
	attempts int  // to have one serve
	failures int  // of these, of the workers' own; the machine's are not counted
	told     bool // that the machine lets no worker serve

	next  *workerProcess // that can replace the worker, or soon will, or nil
	alone bool           // it was told that no process stands by

	ending    time.Time // end of the grace period; zero: the mount should not end
	warned    bool      // that files are open
	unmounted bool
}

const (
	// So many messages of a worker may wait for the supervisor. A worker sends few: pongs and snapshots.
	maxMessages = 64
	// A worker that was pinged for so long, and did not answer although it could work, hangs.
	silentLimit = 3 * pingEvery
	// A worker that gets ready may work for so long.
	startLimit = 20 * time.Second
	// The supervisor looks this often for what nothing tells it: that a worker has ended whose threads cannot be killed, and keep
	// its socket open; and, in the grace period, that no file is open any more.
	lookEvery = 50 * time.Millisecond
	// A worker that has served for so long did not fail at once, also if there was no request to answer.
	settled = 200 * time.Millisecond
	// So many workers in a row may fail at once. From the second attempt on the supervisor waits before the next: 10 ms, 20, 40, …
	maxFailures = 10
	backOff     = 10 * time.Millisecond
	maxBackOff  = time.Second
	// The supervisor of a mount needs no more threads.
	enoughThreads = 8
)

// Run mounts at an absolute path and sees to it that a worker serves until the mount ends, whoever ends it. The error is nil if
// the mount was unmounted, or Stop asked for its end. A mount that somebody else made is left to them: when the connection ends, its
// readers get errors.
func Run(mountpoint string, o Options) error {
	// The kernel kills a worker when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	keepThreads()
	s := &supervisor{Options: o, mountpoint: mountpoint}
	defer func() { s.Snapshot.Close() }()
	var err error
	if s.memory, s.shared, err = state.New(); err != nil {
		return err
	}
	if err := s.mount(); err != nil {
		return err
	}
	defer func() { s.connection.Close() }()
	if err = s.begin(false); err != nil {
		err = fmt.Errorf("cannot serve %s: %w", mountpoint, err)
	} else {
		o.Serving()
		if err = s.run(); errors.Is(err, errStopped) {
			err = nil
			if s.Connection != nil {
				s.Log.Warn("the connection ends, and the mount is left to whoever made it: until they unmount, its readers get errors")
			}
		} else if err != nil {
			s.Log.Error("the mount ends: its readers get errors", "err", err)
		}
	}
	for _, p := range []*workerProcess{s.worker, s.next} {
		if p != nil {
			p.kill()
		}
	}
	return errors.Join(err, s.detach())
}

// keepThreads makes all the threads that this process will need, which Go keeps. It would end the process, and the mount, if it
// needed another one while the machine gave none.
func keepThreads() {
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

// mount makes the connection, or takes the one that was handed over.
func (s *supervisor) mount() (err error) {
	if s.Connection != nil {
		s.connection = s.Connection
		s.mounted, err = mount.Adopt(s.mountpoint, s.shared)
		return err
	}
	mounted, connection, err := mount.Connect(s.mountpoint, s.AllowOther)
	if err == nil {
		s.mounted, s.connection = mounted, connection
	}
	return err
}

// start starts a worker, which sends msgPrepared when it could serve.
func (s *supervisor) start(reload bool) (*workerProcess, error) {
	ours, theirs, err := fdpass.Pair()
	if err != nil {
		return nil, machineError{err}
	}
	p := &workerProcess{
		cmd: s.Worker(reload), socket: &socket{file: ours}, messages: make(chan message, maxMessages), ended: make(chan struct{}),
		reload: reload, from: s.Snapshot,
	}
	p.cmd.ExtraFiles = append([]*os.File{s.connection, s.memory, theirs, s.Snapshot}, p.cmd.ExtraFiles...)
	// A group of its own: Ctrl-C is for the supervisor, which then unmounts.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = p.cmd.Start()
	theirs.Close() // or the socket would stay open after the worker ended
	if err != nil {
		ours.Close()
		return nil, machineError{err}
	}
	go p.listen()
	return p, nil
}

// begin lets the worker that stands by serve, or else a new one, as with reload.
func (s *supervisor) begin(reload bool) (err error) {
	p := s.next
	s.next = nil
	if p != nil && reload {
		p.kill()
		p = nil
	}
	if p == nil {
		if p, err = s.start(reload); err != nil {
			return err
		}
	}
	if !p.prepared {
		if err := p.await(msgPrepared, startLimit, s.attend); err != nil {
			return err
		}
	}
	return s.hand(p)
}

// hand gives the mount to a worker that is prepared.
func (s *supervisor) hand(p *workerProcess) error {
	s.answered = s.shared.Answered.Load()
	if err := p.socket.send(msgServe, nil); err != nil {
		return p.failure(message{})
	}
	if err := p.await(msgServing, silentLimit, s.attend); err != nil {
		return err
	}
	p.serves = true
	s.worker, s.began, s.silent = p, time.Now(), 0
	s.shared.Heartbeat.Store(state.Monotonic())
	// Only now, because the answer to the kernel's first request resets the read-ahead.
	if err := mount.SetReadAhead(s.mounted.Device); err != nil && s.shared.Workers.Load() == 1 {
		s.Log.Info("could not raise the kernel's read-ahead, so reading batches.bin and batches.npy in order is slower; root can raise it",
			"want_kib", mount.ReadAhead>>10, "err", err)
	}
	if p.published != nil {
		s.keepSnapshot(p.published)
		p.published = nil
	}
	return nil
}

// run keeps a worker serving until the mount is gone.
func (s *supervisor) run() error {
	ping, look := time.NewTicker(pingEvery), time.NewTicker(lookEvery)
	defer ping.Stop()
	defer look.Stop()
	s.standBy()
	for !s.gone() {
		var next chan message
		if s.next != nil {
			next = s.next.messages
		}
		var err error
		select {
		case <-s.Restart:
			err = s.restart()
		case <-s.Stop:
			err = s.end()
		case m, ok := <-s.worker.messages:
			err = s.received(m, ok)
		case m := <-next:
			err = s.receivedNext(m)
		case <-ping.C:
			if err = s.ping(); err == nil {
				s.standBy()
			}
		case <-look.C:
			switch {
			case s.worker.dying():
				err = s.replace(nil)
			case s.next != nil && !s.next.prepared && s.next.isLate():
				s.drop(errLate(startLimit))
			case !s.ending.IsZero():
				err = s.tryToEnd()
			}
		}
		if errors.Is(err, errOver) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// received handles a message of the worker. ok is false at the end of its messages.
func (s *supervisor) received(m message, ok bool) error {
	switch {
	case !ok:
		return s.replace(nil)
	case m.text == msgSnapshot:
		s.keepSnapshot(m.file)
	case m.text == msgPong:
		s.silent = 0
		s.shared.Heartbeat.Store(state.Monotonic())
	case strings.HasPrefix(m.text, msgRefused):
		s.Log.Error("the worker cannot serve any longer", "err", strings.TrimPrefix(m.text, msgRefused))
	}
	return nil
}

// ping asks the worker whether it is well. It counts pings and not the time, because this process may have been stopped for a
// while, and of a ping only what the worker could work.
func (s *supervisor) ping() error {
	if s.silent += s.worker.worked(pingEvery); s.silent > silentLimit {
		return s.replace(errors.New("it did not answer"))
	}
	s.worker.socket.send(msgPing, nil) // an error means that it has ended, which its socket tells too
	return nil
}

// resends says whether the kernel sends again what a dead worker left unanswered. Its first request tells.
func (s *supervisor) resends() bool {
	const flags2, hasResend = 40 + 16, 1 << (39 - 32)
	request := s.shared.Init.Get()
	return !s.NoResend && len(request) >= flags2+4 && binary.NativeEndian.Uint32(request[flags2:])&hasResend != 0
}
