// Package supervise keeps a mount alive while the processes that serve it come and go.
//
// [Run] is the supervisor. It mounts, and holds the connection to the kernel and the shared state,
// but serves nothing itself. It runs a worker, which serves, and a standby, which it promotes when
// the worker ends or hangs. Both call [ConnectSupervisor] and exchange messages with the supervisor
// over a socket.
package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/clock"
)

// Options configure a supervisor.
type Options struct {
	// Connection is the connection of a mount that was handed over, or nil. Run closes it, unless
	// it fails to mount.
	Connection *os.File
	AllowOther bool // whether other users may read, within the files' permissions
	// WorkerCommand returns the command of a worker, which must call ConnectSupervisor. The
	// descriptors in its ExtraFiles begin at ExtraFd. In a restart, it should load the program and
	// the configuration anew; later workers should run that program if RestartEnded gets true.
	WorkerCommand func(isRestart bool) *exec.Cmd
	Snapshot      *os.File         // snapshot for the first worker; Run closes it, too
	Restart       <-chan os.Signal // signals to replace the worker
	// IsOrphaned reports whether this process has lost its terminal. A signal in Restart then
	// unmounts, unless batchfs restart has announced it.
	IsOrphaned   func() bool
	IgnoreHangup bool             // whether that signal does nothing instead
	Stop         <-chan os.Signal // signals to unmount; the second one ends the grace period
	Grace        time.Duration    // time for open files to be closed before the mount ends
	NoResend     bool             // whether to assume that the kernel does not resend requests

	Serving      func(*state.Shared)  // called when the first worker serves
	RestartEnded func(succeeded bool) // called after each restart
	Stopping     func()               // called when the mount begins to end
	Log          *slog.Logger
}

// A supervisor belongs to the goroutine of Run.
type supervisor struct {
	Options
	mounted      *mount.Mounted
	connection   *os.File
	shared       *state.Shared
	sharedMemory *os.File // file that shared maps

	worker  *workerProcess // the process that serves or will serve; nil until retryAt
	next    *workerProcess // the standby, or the new worker of a restart, or nil
	retryAt time.Time

	restartRequested bool // whether to restart once a worker serves and no restart is in progress

	servingSince  time.Time     // time when a worker last began to serve; zero before the first
	repliesBefore uint64        // value of Replies when the worker was promoted
	sinceLastPong time.Duration // worker's runnable time since its last pong

	lastFailure error     // why no worker serves, or nil
	failedAt    time.Time // time when the last worker stopped serving

	// These are reset when a worker ends after a reply or after serving for settledAfter.
	attempts       int  // attempts to get a worker to serve
	failures       int  // attempts that failed, except for lack of resources
	loggedShortage bool // whether a lack of resources was logged

	backOff           time.Duration // pause before the second attempt; doubles up to maxBackOff
	pingEvery         time.Duration
	unresponsiveLimit time.Duration // longest runnable time of a worker without a pong

	graceEnd time.Time // end of the grace period, or zero
}

const (
	maxMessages     = 64                     // queued messages of a worker
	startLimit      = 20 * time.Second       // runnable time for a process to get ready
	checkEvery      = 50 * time.Millisecond  // interval of calls of checkProcesses
	settledAfter    = 200 * time.Millisecond // time of serving after which attempts are reset
	maxFailures     = 10                     // consecutive failed attempts after which Run gives up
	maxBackOff      = time.Second            // longest pause between attempts
	reservedThreads = 8                      // most threads that a supervisor needs
)

func newSupervisor(
	o Options, mounted *mount.Mounted, connection *os.File, shared *state.Shared, memory *os.File,
) *supervisor {
	return &supervisor{
		Options: o, mounted: mounted, connection: connection, shared: shared, sharedMemory: memory,
		backOff: 10 * time.Millisecond, pingEvery: time.Second, unresponsiveLimit: 3 * time.Second,
	}
}

// Run mounts at an absolute path and keeps a worker serving until the mount ends. It returns nil if
// the mount was unmounted or Stop ended it, and ErrInterrupted if Stop ended it before a worker
// served. When Run returns, a mount that was handed over to it stays mounted, and its readers get
// errors until it is unmounted.
func Run(mountpoint string, o Options) error {
	// Workers die with the thread that started them (Pdeathsig).
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
	shared.OOMScore.Store(surviveOOM())
	s := newSupervisor(o, mounted, connection, shared, memory)
	s.recordSnapshot()
	defer func() { // both fields may change
		s.connection.Close()
		s.Snapshot.Close()
	}()
	err = s.supervise()
	// EBUSY is ignored: it means that something is mounted over this mount.
	if unmountErr := s.mounted.Unmount(true); unmountErr != nil && !errors.Is(unmountErr, unix.EBUSY) {
		err = errors.Join(err, unmountErr)
	}
	return err
}

// reserveThreads starts all threads that this process will need; Go keeps them. If Go could not get
// a thread later, it would end the process and with it the mount.
func reserveThreads() {
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0))) // limits the threads that Go starts
	var started sync.WaitGroup
	started.Add(reservedThreads)
	for range reservedThreads {
		go func() {
			runtime.LockOSThread() // gives each goroutine its own thread
			started.Done()
			started.Wait()
			runtime.UnlockOSThread()
		}()
	}
	started.Wait()
}

func (s *supervisor) supervise() error {
	defer s.killWorkers()
	err := s.run()
	switch {
	case s.servingSince.IsZero() && errors.Is(err, errStopped):
		return ErrInterrupted
	case s.servingSince.IsZero():
		return fmt.Errorf("cannot serve %s: %w", s.mounted.Mountpoint, err)
	case errors.Is(err, errUnmounted):
	case !errors.Is(err, errStopped):
		s.Log.Error("the mount is ending: its readers get errors", "err", err)
		return err
	case s.mounted.HandedOver:
		s.Log.Warn("the connection is closing: readers get errors until whoever made the mount unmounts it")
	}
	return nil
}

func (s *supervisor) killWorkers() {
	for _, p := range s.processes() {
		p.kill()
	}
}

func (s *supervisor) processes() []*workerProcess {
	return slices.DeleteFunc([]*workerProcess{s.worker, s.next}, func(p *workerProcess) bool { return p == nil })
}

// run keeps a worker serving, and returns why the mount ends.
func (s *supervisor) run() error {
	ping, check := time.NewTicker(s.pingEvery), time.NewTicker(checkEvery)
	defer ping.Stop()
	defer check.Stop()
	for !s.isDisconnected() {
		if s.worker == nil && !time.Now().Before(s.retryAt) {
			if err := s.appointWorker(false); err != nil {
				return err
			}
		}
		if s.restartRequested && s.worker != nil && s.worker.isServing && !s.isRestarting() {
			s.restart()
		}
		var err error
		select {
		case <-s.Restart:
			err = s.requestRestart()
		case <-s.Stop:
			err = s.stop()
		case m := <-s.worker.inbox():
			err = s.handleMessage(s.worker, m)
		case m := <-s.next.inbox():
			err = s.handleMessage(s.next, m)
		case <-ping.C:
			err = s.ping()
		case <-check.C:
			err = s.checkProcesses()
		}
		if err != nil {
			return err
		}
	}
	return errUnmounted
}

var errNoDescriptor = errors.New("the supervisor had no free descriptor for the snapshot of a worker: raise its limit of open files (ulimit -n), or try again")

// handleMessage handles a message from a process. The zero message means that it has ended.
func (s *supervisor) handleMessage(p *workerProcess, m message) error {
	switch {
	case m.text == msgSnapshot && m.file == nil:
		if !p.isServing { // it would serve what later workers do not know
			return s.processFailed(p, errNoDescriptor)
		}
		s.logLostSnapshot()
	case m.text == msgSnapshot && p.isServing:
		s.setSnapshot(m.file)
	case m.text == msgSnapshot:
		p.publishedSnapshot = m.file
	case m.text == msgPrepared:
		p.isPrepared = true
		if p == s.worker {
			return s.promote()
		} else if p.isRestart {
			return s.switchToNext()
		}
	case m.text == msgServing && p.isPromoted:
		s.recordServing()
	case m.text == msgPong:
		s.sinceLastPong = 0
		s.shared.Heartbeat.Store(clock.Now())
	case p.isServing && strings.HasPrefix(m.text, msgRefused):
		s.Log.Error("the worker can no longer serve", "err", strings.TrimPrefix(m.text, msgRefused))
	case m.text == "":
		return s.processFailed(p, nil)
	case strings.HasPrefix(m.text, msgRefused):
		p.lastMessage = m.text
		p.awaitEnd(leavingLimit) // with an exit status that processFailed needs
		return s.processFailed(p, nil)
	default:
		return s.processFailed(p, fmt.Errorf("it sent an unexpected message, %q", m.text))
	}
	return nil
}

// ping sends a ping, and starts a standby if there is none; or it replaces a worker that hangs.
// Only the time that the worker could have run counts, because it may have waited for a processor,
// and this process may have been stopped.
func (s *supervisor) ping() error {
	standby := 0
	if s.next != nil && !s.next.isRestart {
		standby = s.next.cmd.Process.Pid
	}
	s.shared.Standby.Store(int64(standby))
	if s.worker == nil || !s.worker.isServing {
		return nil
	}
	if s.sinceLastPong += s.worker.runnableTime(s.pingEvery); s.sinceLastPong > s.unresponsiveLimit {
		return s.processFailed(s.worker, errors.New("it did not answer pings"))
	}
	s.worker.send(msgPing)
	s.ensureStandby()
	return nil
}

// checkProcesses replaces a process that takes too long to get ready, or that has ended without
// closing its socket because one of its threads cannot be killed. In the grace period, it unmounts
// if no files are open.
func (s *supervisor) checkProcesses() error {
	for _, p := range s.processes() {
		limit := startLimit
		if p.isPromoted {
			limit = s.unresponsiveLimit
		}
		_, isDying := p.mainThreadStatus()
		switch {
		case isDying:
			return s.processFailed(p, nil)
		// If messages are queued, it is the supervisor that is slow.
		case !p.isServing && p.isPrepared == p.isPromoted && p.isOverdue(limit) && len(p.messages) == 0:
			return s.processFailed(p, fmt.Errorf("the new worker was not ready within %v", limit))
		}
	}
	if !s.graceEnd.IsZero() {
		return s.tryUnmount()
	}
	return nil
}

// A restart passes through these functions: restart starts a worker that loads the program and the
// configuration anew. Once it is prepared, switchToNext ends the old worker and promotes the new
// one, and recordServing ends the restart. If the new worker fails before switchToNext,
// rejectRestart leaves the old one in place. If the new worker fails later, or the old one fails
// during the restart, failRestart leaves the old program and snapshot to another worker.

// requestRestart handles a signal to replace the worker. If a restart is in progress, another one
// follows, because the configuration may have changed after the new worker read it.
func (s *supervisor) requestRestart() error {
	if !s.shared.IsRestartAnnounced() && s.IsOrphaned() {
		if s.IgnoreHangup || !s.graceEnd.IsZero() {
			// The shell and the kernel may each send a signal when a terminal is lost.
			return nil
		}
		return s.stop()
	}
	s.restartRequested = true
	return nil
}

func (s *supervisor) isRestarting() bool { return s.next != nil && s.next.isRestart }

// restart starts the worker of a restart.
func (s *supervisor) restart() {
	s.restartRequested = false
	s.shared.RestartsBegun.Add(1)
	var p *workerProcess
	var err error
	switch {
	case !s.graceEnd.IsZero():
		err = errors.New("the mount is ending, and waits only for its open files to be closed")
	case s.mounted.HandedOver && !s.kernelResends():
		err = errors.New("the mount was handed over, and before Linux 6.9 it ends with its worker")
	default:
		p, err = s.startProcess(true)
	}
	if err != nil {
		s.rejectRestart(err)
		return
	}
	s.killNext()
	s.next = p
}

// killNext kills the next process, if there is one. It has never served.
func (s *supervisor) killNext() {
	if s.next != nil {
		s.next.kill()
		s.next.readLastMessages()
		s.next.publishedSnapshot.Close()
		s.next = nil
	}
}

// rejectRestart ends a restart without replacing the worker.
func (s *supervisor) rejectRestart(err error) {
	s.Log.Error("restart rejected: the current worker keeps serving", "err", err)
	s.endRestart(err)
}

// failRestart ends a restart after which neither the old worker nor the new one is left.
func (s *supervisor) failRestart(err error) {
	s.Log.Error("restart rejected: another worker takes over with the old program and configuration", "err", err)
	s.endRestart(err)
}

func (s *supervisor) endRestart(err error) {
	s.RestartEnded(err == nil)
	s.shared.EndRestart(err)
}

// switchToNext replaces the worker with the new one of a restart.
func (s *supervisor) switchToNext() error {
	s.forgetFailures()
	if s.worker.send(msgLeave) == nil {
		s.worker.awaitEnd(leavingLimit)
	}
	s.worker.kill()
	s.readLastSnapshots()
	// If the kernel does not resend, the new worker's connection ends now. And if the old worker
	// has published a snapshot since the new one started, that is outdated.
	if !s.kernelResends() || s.Snapshot != s.next.snapshot {
		s.killNext()
	}
	return s.appointWorker(true)
}

// appointWorker makes the next process the worker or, if there is none, starts one. If a worker has
// served and the kernel does not resend requests, it first remounts.
func (s *supervisor) appointWorker(isRestart bool) (err error) {
	if !s.servingSince.IsZero() && !s.kernelResends() {
		if err := s.remount(); err != nil {
			return err
		}
	}
	if s.worker, s.next = s.next, nil; s.worker == nil {
		if s.worker, err = s.startProcess(isRestart); err != nil {
			if isRestart {
				s.failRestart(err)
			}
			return s.scheduleRetry(err)
		}
	}
	if s.worker.isPrepared {
		return s.promote()
	}
	return nil
}

func (s *supervisor) startProcess(isRestart bool) (*workerProcess, error) {
	p, err := startWorker(s.WorkerCommand(isRestart), s.connection, s.sharedMemory, s.Snapshot)
	if err != nil {
		return nil, resourceError{err}
	}
	p.isRestart = isRestart
	return p, nil
}

func (s *supervisor) promote() error {
	p := s.worker
	p.isPromoted, p.startupTime = true, 0
	s.repliesBefore = s.shared.Replies.Load()
	if err := p.send(msgServe); err != nil {
		return s.processFailed(p, nil)
	}
	return nil
}

// recordServing reports that the worker serves, and starts a standby.
func (s *supervisor) recordServing() {
	p, pid, isFirst := s.worker, s.worker.cmd.Process.Pid, s.servingSince.IsZero()
	p.isServing = true
	s.servingSince, s.sinceLastPong = time.Now(), 0
	s.shared.Heartbeat.Store(clock.Now())
	// The read-ahead is set only now, because the reply to INIT resets it.
	if err := mount.SetReadAhead(s.mounted.Device); err != nil && isFirst {
		s.Log.Info("could not raise the kernel's read-ahead, so reading batches.bin and batches.npy in order is slower; root can raise it",
			"want_kib", mount.ReadAhead>>10, "err", err)
	}
	if p.publishedSnapshot != nil {
		s.setSnapshot(p.publishedSnapshot)
	}
	switch {
	case isFirst:
		s.Serving(s.shared)
	case p.isRestart:
		s.Log.Info("restarted: a new worker is serving", "pid", pid)
		s.endRestart(nil)
		p.isRestart = false
	default:
		s.Log.Warn("the worker failed: another has taken over", "why", s.lastFailure, "after", time.Since(s.failedAt), "attempts", s.attempts, "pid", pid)
	}
	s.lastFailure = nil
	s.ensureStandby()
}

// processFailed kills a process that should end for the reason why or, if why is nil, has ended. If
// it was the worker, another will be tried.
func (s *supervisor) processFailed(p *workerProcess, why error) error {
	p.kill()
	served := p.readLastMessages()
	if !served {
		p.publishedSnapshot.Close()
	}
	if why == nil {
		why = p.exitError()
	}
	switch {
	case p == s.next:
		s.next = nil
		if p.isRestart {
			s.rejectRestart(why)
		} else {
			s.Log.Debug("the standby failed", "err", why)
		}
		return nil
	case served:
		if p.isRestart || s.lastFailure != nil || s.servingSince.IsZero() { // msgServing was queued
			s.recordServing()
		}
		s.readLastSnapshots()
		if !isShortage(why) {
			s.shared.Crashes.Add(1)
		}
		if s.isRestarting() {
			s.killNext()
			s.failRestart(errors.New("the worker failed during the restart; try again"))
		}
		s.forgetFailures()
	case p.isRestart:
		s.failRestart(why)
	}
	return s.scheduleRetry(why)
}

// readLastSnapshots handles the snapshots that the worker sent before it ended.
func (s *supervisor) readLastSnapshots() {
	for len(s.worker.messages) > 0 {
		switch m := <-s.worker.messages; {
		case m.text != msgSnapshot:
		case m.file == nil:
			s.logLostSnapshot()
		default:
			s.setSnapshot(m.file)
		}
	}
}

func (s *supervisor) logLostSnapshot() {
	s.Log.Error("the snapshot of changed token files is lost, so another worker would have to open them again", "err", errNoDescriptor)
}

// forgetFailures forgets the failed attempts before the worker that is ending, if that one has sent
// a reply or has served for settledAfter.
func (s *supervisor) forgetFailures() {
	if s.shared.Replies.Load() != s.repliesBefore || time.Since(s.servingSince) > settledAfter {
		s.attempts, s.failures, s.loggedShortage = 0, 0, false
	}
}

// scheduleRetry records why there is no worker and when to try again. It returns an error if none
// has ever served, or too many failed. Lack of resources is no reason to give up, because it may
// pass.
func (s *supervisor) scheduleRetry(why error) error {
	s.worker = nil
	if s.servingSince.IsZero() {
		return why
	}
	if s.lastFailure == nil {
		s.lastFailure, s.failedAt = why, time.Now()
	}
	s.attempts++
	if !isShortage(why) {
		s.failures++
	} else if s.attempts > 1 && !s.loggedShortage {
		s.loggedShortage = true
		s.Log.Error("no worker is serving: none can be started, or the machine lacks memory or processes; readers wait until an attempt succeeds", "err", why)
	}
	if s.failures > maxFailures {
		return fmt.Errorf("%d workers in a row failed before they had answered a request; the last failure: %w", maxFailures, why)
	}
	s.retryAt = time.Now()
	if n := s.attempts - 2; n >= 0 {
		s.retryAt = s.retryAt.Add(min(s.backOff<<min(n, 10), maxBackOff))
	}
	return nil
}

// ensureStandby starts a standby if there is no next process. Starting one only after the worker
// has ended would take long while readers keep every processor busy.
func (s *supervisor) ensureStandby() {
	if s.next != nil || !s.graceEnd.IsZero() || !s.kernelResends() {
		return
	}
	var err error
	if s.next, err = s.startProcess(false); err != nil {
		s.Log.Debug("cannot start a standby", "err", err)
	}
}

// kernelResends reports whether the kernel resends requests that a dead worker left unanswered.
func (s *supervisor) kernelResends() bool {
	// The upper half of the flags begins at byte 16 after a header of 40. HAS_RESEND is bit 39.
	const flags2, hasResend = 40 + 16, 1 << (39 - 32)
	request := s.shared.Init.Get()
	return !s.NoResend && len(request) >= flags2+4 && binary.NativeEndian.Uint32(request[flags2:])&hasResend != 0
}

// setSnapshot sets the snapshot for new workers, and ends a standby that started from an older one.
func (s *supervisor) setSnapshot(file *os.File) {
	old := s.Snapshot
	s.Snapshot = file
	s.recordSnapshot()
	old.Close()
	if !s.isRestarting() {
		s.killNext()
	}
}

// recordSnapshot records which of the snapshots that this process holds is s.Snapshot. During a
// restart, it holds two.
func (s *supervisor) recordSnapshot() {
	if info, err := s.Snapshot.Stat(); err == nil {
		s.shared.Snapshot.Store(info.Sys().(*syscall.Stat_t).Ino)
	}
}

// remount ends the connection, which gives all waiting readers errors, and mounts again.
func (s *supervisor) remount() error {
	if s.mounted.HandedOver {
		return errors.New("batchfs cannot remount a mount that was handed over to it; from Linux 6.9 on, another worker would take over")
	}
	s.connection.Close()
	current, err := s.mounted.Current()
	if err != nil {
		return err
	}
	if current == nil {
		return errStopped // a user unmounted it while it had readers
	}
	if err := current.Unmount(true); err != nil {
		return err
	}
	s.shared.NewConnection()
	mounted, connection, err := mount.Connect(current.Mountpoint, s.AllowOther)
	if err == nil {
		s.mounted, s.connection = mounted, connection
	}
	return err
}
