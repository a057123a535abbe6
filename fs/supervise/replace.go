package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"batchfs/fs/mount"
	"batchfs/internal/clock"
)

// begin has the standby serve, or a new worker, as always with reload.
func (s *supervisor) begin(reload bool) (err error) {
	if !s.servingSince.IsZero() && !s.resends() {
		if err := s.remount(); err != nil {
			return err
		}
	}
	if s.worker, s.standby = s.standby, nil; s.worker == nil {
		if s.worker, err = s.start(reload); err != nil {
			return s.scheduleRetry(err, reload)
		}
	}
	if s.worker.isPrepared {
		return s.promote()
	}
	return nil
}

func (s *supervisor) start(reload bool) (*workerProcess, error) {
	p, err := startWorker(s.Worker(reload), s.connection, s.memory, s.Snapshot)
	if err != nil {
		return nil, resourceError{err}
	}
	p.isReload = reload
	return p, nil
}

func (s *supervisor) promote() error {
	p := s.worker
	p.isPromoted, p.startupTime = true, 0
	s.repliesBefore = s.shared.Replies.Load()
	if err := p.send(msgServe); err != nil {
		return s.workerFailed(p, p.failure(message{}))
	}
	return nil
}

// serving notes that the worker serves.
func (s *supervisor) serving() {
	p, pid, isFirst := s.worker, s.worker.cmd.Process.Pid, s.servingSince.IsZero()
	p.serves = true
	s.servingSince, s.unresponsive = time.Now(), 0
	s.shared.Heartbeat.Store(clock.Now())
	// Only now, because the answer to the kernel's first request resets the read-ahead.
	if err := mount.SetReadAhead(s.mounted.Device); err != nil && isFirst {
		s.Log.Info("could not raise the kernel's read-ahead, so reading batches.bin and batches.npy in order is slower; root can raise it",
			"want_kib", mount.ReadAhead>>10, "err", err)
	}
	if p.published != nil {
		s.setSnapshot(p.published)
	}
	switch {
	case isFirst:
		s.Serving(s.shared)
	case p.isReload:
		s.Log.Info("restarted: a new worker serves", "pid", pid)
		s.Restarted(pid)
		s.endRestart("")
		p.isReload = false
	default:
		s.Log.Warn("the worker ended: another goes on", "why", s.lastFailure, "after", time.Since(s.failedAt), "attempts", s.attempts, "pid", pid)
	}
	s.lastFailure = nil
	s.ensureStandby()
}

// workerFailed ends a process that has ended, or should. If it was the worker, another will be
// tried.
func (s *supervisor) workerFailed(p *workerProcess, why error) error {
	p.kill()
	switch {
	case p == s.standby:
		s.standby = nil
		if p.isReload {
			s.refuse(why)
		} else {
			s.Log.Debug("no process stands by", "err", why)
		}
		return nil
	case p.serves:
		s.drain()
		if !errors.As(why, new(resourceError)) {
			s.shared.Crashes.Add(1)
		}
		if s.standby != nil && s.standby.isReload {
			s.workerFailed(s.standby, errors.New("the worker ended meanwhile; try again"))
		}
		if s.shared.Replies.Load() != s.repliesBefore || time.Since(s.servingSince) > settled {
			s.attempts, s.failures, s.warned = 0, 0, false
		}
	}
	return s.scheduleRetry(why, p.isReload)
}

// drain keeps a snapshot that the worker sent before it ended.
func (s *supervisor) drain() {
	for len(s.worker.messages) > 0 {
		if m := <-s.worker.messages; m.text == msgSnapshot {
			s.setSnapshot(m.file)
		}
	}
}

// scheduleRetry records why there is no worker, and when another is due. The error is that too many have failed; what the machine does to workers is
// no reason to give up.
func (s *supervisor) scheduleRetry(why error, isRestart bool) error {
	s.worker = nil
	if s.servingSince.IsZero() {
		return why
	}
	if isRestart {
		s.endRestart(why.Error())
	}
	if s.lastFailure == nil {
		s.lastFailure, s.failedAt = why, time.Now()
	}
	s.attempts++
	if !errors.As(why, new(resourceError)) {
		s.failures++
	} else if s.attempts > 1 && !s.warned {
		s.warned = true
		s.Log.Error("no worker serves, and the machine starts none or kills it: readers wait, and it is tried until one serves", "err", why)
	}
	if s.failures > maxFailures {
		return fmt.Errorf("%d processes in a row ended before they had answered a request; the last one: %w", maxFailures, why)
	}
	s.retryAt = time.Now()
	if n := s.attempts - 2; n >= 0 {
		s.retryAt = s.retryAt.Add(min(s.backOff<<min(n, 10), maxBackOff))
	}
	return nil
}

// ensureStandby starts a standby if there is none: starting one takes long while readers keep every processor busy.
func (s *supervisor) ensureStandby() {
	if s.standby != nil || !s.ending.IsZero() || !s.resends() {
		return
	}
	var err error
	if s.standby, err = s.start(false); err != nil {
		s.Log.Debug("no process stands by", "err", err)
	}
}

// resends says whether the kernel sends again what a dead worker left unanswered. Its first request tells.
func (s *supervisor) resends() bool {
	const flags2, hasResend = 40 + 16, 1 << (39 - 32)
	request := s.shared.Init.Get()
	return !s.NoResend && len(request) >= flags2+4 && binary.NativeEndian.Uint32(request[flags2:])&hasResend != 0
}

// setSnapshot sets the snapshot that the next worker begins from. The standby began from an older one.
func (s *supervisor) setSnapshot(file *os.File) {
	s.Snapshot.Close()
	s.Snapshot = file
	if s.standby != nil && !s.standby.isReload {
		s.standby.kill()
		s.standby = nil
	}
}

// Of a restart while another one is under way, both get one outcome.
func (s *supervisor) restart() {
	var next *workerProcess
	var err error
	switch {
	case s.standby != nil && s.standby.isReload:
		return
	case !s.ending.IsZero():
		err = errors.New("the mount is ending: it was told to stop, and waits for files that are still open")
	case s.Connection != nil && !s.resends():
		err = errors.New("the mount was handed over: before Linux 6.9 it would end with its worker")
	default:
		next, err = s.start(true)
	}
	if err != nil {
		s.refuse(err)
		return
	}
	if s.standby != nil {
		s.standby.kill()
	}
	s.standby = next
}

// refuse ends a restart: the same worker serves on.
func (s *supervisor) refuse(err error) {
	s.Log.Error("restart refused: the same worker keeps serving", "err", err)
	s.endRestart(err.Error())
}

// endRestart tells the command that waits why the restart was refused, or "".
func (s *supervisor) endRestart(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.Restarts.Add(1)
}

// handOver ends the worker, and has the one that a restart started serve in its place.
func (s *supervisor) handOver() error {
	if s.worker.send(msgLeave) == nil {
		s.worker.awaitEnd(leavingLimit)
	}
	s.worker.kill()
	s.drain()
	if next := s.standby; !s.resends() || s.Snapshot != next.from { // it has a connection that ends now, or an older snapshot
		next.kill()
		s.standby = nil
	}
	return s.begin(true)
}

// remount ends the connection, which gives an error to every reader that waits, and mounts again.
func (s *supervisor) remount() error {
	if s.Connection != nil {
		return errors.New("the mount was handed over, and cannot be made again from here; from Linux 6.9 on, another worker would go on")
	}
	s.connection.Close()
	now, err := s.mounted.Refresh()
	if err != nil {
		return err
	}
	if now == nil {
		return errStopped // it was unmounted under its readers
	}
	if err := now.Unmount(true); err != nil {
		return err
	}
	s.shared.NewConnection()
	mounted, connection, err := mount.Connect(now.Mountpoint, s.AllowOther) // the directory may have been moved
	if err == nil {
		s.mounted, s.connection = mounted, connection
	}
	return err
}
