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

	"golang.org/x/sys/unix"

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

// detach unmounts, whoever has files open, unless another filesystem is mounted over this one.
func (s *supervisor) detach() error {
	if err := s.mounted.Unmount(true); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// start starts a worker, which sends msgPrepared when it could serve.
func (s *supervisor) start(reload bool) (*workerProcess, error) {
	ours, theirs, err := newSockets()
	if err != nil {
		return nil, machineError{err}
	}
	p := &workerProcess{
		cmd: s.Worker(reload), socket: ours, messages: make(chan message, maxMessages), ended: make(chan struct{}),
		reload: reload, from: s.Snapshot,
	}
	p.cmd.ExtraFiles = append([]*os.File{s.connection, s.memory, theirs, s.Snapshot}, p.cmd.ExtraFiles...)
	// A group of its own: Ctrl-C is for the supervisor, which then unmounts.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = p.cmd.Start()
	theirs.Close() // or the socket would stay open after the worker ended
	if err != nil {
		ours.file.Close()
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

// standBy starts a worker that stands by, because starting one takes long while readers keep every processor busy.
func (s *supervisor) standBy() {
	if s.next != nil || !s.ending.IsZero() || !s.resends() {
		return
	}
	next, err := s.start(false)
	if err != nil {
		s.tellAlone(err)
		return
	}
	s.next = next
}

// tellAlone logs that no process can be made to stand by, once until one does.
func (s *supervisor) tellAlone(err error) {
	if !s.alone {
		s.Log.Warn("no process stands by, so replacing a worker takes longer: the machine starts none, or it ends at once", "err", err)
	}
	s.alone = true
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

// keepSnapshot keeps the snapshot that the next worker begins from. The one that stands by began from an older one.
func (s *supervisor) keepSnapshot(file *os.File) {
	s.Snapshot.Close()
	s.Snapshot = file
	if s.next != nil && !s.next.reload {
		s.next.kill()
		s.next = nil
	}
}

var (
	errStopped = errors.New("told to stop")     // the mount ends because somebody asked for that
	errOver    = errors.New("it was unmounted") // the kernel has let go of the connection
)

// isEnd says whether an error is the end of the mount.
func isEnd(err error) bool { return errors.Is(err, errStopped) || errors.Is(err, errOver) }

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

// gone says whether the kernel has let go of the connection: the mount has ended, and so has every open file of it.
func (s *supervisor) gone() bool {
	poll := []unix.PollFd{{Fd: int32(s.connection.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLERR != 0
}

// resends says whether the kernel sends again what a dead worker left unanswered. Its first request tells.
func (s *supervisor) resends() bool {
	const flags2, hasResend = 40 + 16, 1 << (39 - 32)
	request := s.shared.Init.Get()
	return !s.NoResend && len(request) >= flags2+4 && binary.NativeEndian.Uint32(request[flags2:])&hasResend != 0
}

// replace lets another worker serve instead of one that ended or should end, unless the mount is gone. why is for the log; nil
// stands for how the worker ended. What the machine does to workers is no reason to give up: it is tried until it works.
func (s *supervisor) replace(why error) error {
	began := time.Now()
	s.worker.kill()
	if why == nil {
		if why = errors.New(s.worker.howEnded()); s.worker.isMachines() {
			why = machineError{why}
		}
	}
	if !errors.As(why, new(machineError)) {
		s.shared.Crashes.Add(1)
	}
	s.drain()
	if s.next != nil && s.next.reload {
		s.drop(errors.New("the worker ended meanwhile; try again"))
	}
	if s.shared.Answered.Load() != s.answered || time.Since(s.began) > settled {
		s.attempts, s.failures, s.told = 0, 0, false
	}
	failed := why
	for reload := false; ; {
		if s.attempts++; !errors.As(failed, new(machineError)) && !reload {
			if s.failures++; s.failures > maxFailures {
				return fmt.Errorf("%d processes in a row ended before they had answered a request; the last one: %w", maxFailures, failed)
			}
		}
		var err error
		if reload, err = s.pause(); err != nil {
			return err
		}
		if !s.resends() {
			if err := s.remount(); err != nil {
				return err
			}
		}
		switch failed = s.begin(reload); {
		case failed == nil:
			s.Log.Warn("the worker ended: another goes on", "why", why, "after", time.Since(began), "attempts", s.attempts,
				"pid", s.worker.cmd.Process.Pid)
			if reload {
				s.restarted()
			}
			s.standBy()
			return nil
		case isEnd(failed):
			return failed
		case reload:
			s.tell(failed.Error())
		}
		if errors.As(failed, new(machineError)) && !s.told {
			s.told = true
			s.Log.Error("no worker serves, and the machine starts none or kills it: readers wait, and it is tried until one serves", "err", failed)
		}
	}
}

// pause waits between two attempts to have a worker serve. It ends early, and returns true, if a restart is asked for.
func (s *supervisor) pause() (restart bool, err error) {
	over := time.Now()
	if n := s.attempts - 2; n >= 0 {
		over = over.Add(min(backOff<<min(n, 10), maxBackOff))
	}
	for {
		if err := s.attend(); err != nil {
			return false, err
		}
		left := time.Until(over)
		if left <= 0 {
			return false, nil
		}
		select {
		case <-s.Restart:
			return true, nil
		case <-time.After(min(left, lookEvery)):
		}
	}
}

// attend does what run does, as far as it needs no worker. The error isEnd at the end of the mount.
func (s *supervisor) attend() error {
	select {
	case <-s.Stop:
		if err := s.end(); err != nil {
			return err
		}
	default:
	}
	switch {
	case s.gone():
		return errOver
	case !s.ending.IsZero():
		return s.tryToEnd()
	}
	return nil
}

// drain keeps the last snapshot that the worker published before it ended.
func (s *supervisor) drain() {
	for {
		select {
		case m, ok := <-s.worker.messages:
			if !ok {
				return
			}
			if m.text == msgSnapshot {
				s.keepSnapshot(m.file)
			}
		default:
			return
		}
	}
}

// remount ends the connection, which gives an error to every reader that waits, and mounts again.
func (s *supervisor) remount() error {
	if s.Connection != nil {
		return errors.New("the mount was handed over, and cannot be made again from here; from Linux 6.9 on, another worker would go on")
	}
	s.connection.Close()
	now, err := s.mounted.Now()
	if err != nil {
		return err
	}
	if now == nil {
		return errStopped // somebody unmounted it under its readers
	}
	if err := now.Unmount(true); err != nil {
		return err
	}
	s.mountpoint = now.Mountpoint // which may have been moved
	s.shared.NewConnection()
	return s.mount()
}

// restart begins to replace the worker on purpose, unless that is under way: whoever asked waits for the same outcome then.
func (s *supervisor) restart() error {
	if s.next != nil && s.next.reload {
		return nil
	}
	if !s.ending.IsZero() {
		s.refuse(errors.New("the mount is ending: it was told to stop, and waits for files that are still open"))
		return nil
	}
	if s.Connection != nil && !s.resends() {
		s.refuse(errors.New("the mount was handed over: before Linux 6.9 it would end with its worker"))
		return nil
	}
	next, err := s.start(true)
	if err != nil {
		s.refuse(err)
		return nil
	}
	if s.next != nil {
		s.next.kill()
	}
	s.next = next
	return nil
}

// receivedNext handles a message of the process that stands by, or that a restart started.
func (s *supervisor) receivedNext(m message) error {
	switch {
	case m.text == msgSnapshot:
		s.next.published = m.file
	case m.text == msgPrepared && s.next.reload:
		return s.handOver()
	case m.text == msgPrepared:
		s.next.prepared = true
		if s.alone {
			s.alone = false
			s.Log.Info("a process stands by again")
		}
	default:
		s.drop(s.next.failure(m))
	}
	return nil
}

// drop ends the process that was to replace the worker.
func (s *supervisor) drop(why error) {
	next := s.next
	s.next = nil
	next.kill()
	switch {
	case next.reload:
		s.refuse(why)
	case next.prepared:
		s.Log.Debug("no process stands by for a moment", "err", why)
	default:
		s.tellAlone(why)
	}
}

// refuse ends a restart: the same worker serves on.
func (s *supervisor) refuse(err error) {
	s.Log.Error("restart refused: the same worker keeps serving", "err", err)
	s.tell(err.Error())
}

// tell tells whoever asked for a restart how it ended: why it was refused, or "".
func (s *supervisor) tell(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.RestartCount.Add(1)
}

// handOver ends the worker and lets the next one serve.
func (s *supervisor) handOver() (err error) {
	old, next := s.worker, s.next
	if old.socket.send(msgGo, nil) == nil {
		old.awaitEnd(leavingLimit)
	}
	old.kill()
	s.drain()
	s.next = nil
	switch {
	case s.gone():
		next.kill()
		return nil
	case !s.resends():
		next.kill() // it has the connection that ends now
		if err = s.remount(); err != nil {
			return err
		}
		err = s.begin(true)
	case s.Snapshot != next.from:
		next.kill() // it began from an older one
		err = s.begin(true)
	default:
		err = s.hand(next)
	}
	switch {
	case isEnd(err):
		return err
	case err != nil:
		s.tell(err.Error())
		return s.replace(err)
	}
	s.restarted()
	s.standBy()
	return nil
}

// restarted tells that the worker that a restart was asked for serves.
func (s *supervisor) restarted() {
	pid := s.worker.cmd.Process.Pid
	s.Log.Info("restarted: a new worker serves", "pid", pid)
	s.Restarted(pid)
	s.tell("")
}

// end begins to unmount. Open files may be read on in the grace period.
func (s *supervisor) end() error {
	if !s.ending.IsZero() {
		s.Log.Warn("told to stop again: readers get errors")
		return errStopped
	}
	s.Stopping()
	s.ending = time.Now().Add(s.Grace)
	s.shared.Closing.Store(1)
	return s.tryToEnd()
}

func (s *supervisor) tryToEnd() error {
	if s.Connection != nil { // whoever mounted ends the wait earlier, by unmounting
		if time.Now().Before(s.ending) {
			return nil
		}
		return errStopped
	}
	err := error(unix.EBUSY) // a mount that somebody detached counts as busy, so its readers get the grace period too
	if now, _ := s.mounted.Now(); now != nil {
		err = now.Unmount(false)
	}
	switch {
	case err == nil:
		s.unmounted = true
		s.ending = time.Now().Add(leavingLimit)
	case !errors.Is(err, unix.EBUSY):
		return err
	case !time.Now().Before(s.ending):
		if !s.unmounted {
			s.Log.Warn("files were still open at the end of the grace period: their readers get errors")
		}
		return errStopped
	case !s.warned && !s.unmounted:
		s.Log.Warn("files are still open: they may be read on for a while", "grace", s.Grace)
		s.warned = true
	}
	return nil
}
