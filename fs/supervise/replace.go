package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"batchfs/fs/mount"
	"batchfs/internal/clock"
)

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
	case s.Connection != nil && !s.kernelResends():
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
		s.next.publishedSnapshot.Close()
		s.next = nil
	}
}

// rejectRestart ends a restart without replacing the worker.
func (s *supervisor) rejectRestart(err error) {
	s.Log.Error("restart rejected: the current worker keeps serving", "err", err)
	s.endRestart(err.Error())
}

// failRestart ends a restart after which neither the old worker nor the new one is left.
func (s *supervisor) failRestart(err error) {
	s.Log.Error("restart rejected: another worker takes over with the old program and configuration", "err", err)
	s.endRestart(err.Error())
}

// endRestart tells the waiting command why the restart was rejected, or "" if it succeeded.
func (s *supervisor) endRestart(outcome string) {
	s.shared.LastRestart.Set([]byte(outcome))
	s.shared.Restarts.Add(1)
}

// switchToNext replaces the worker with the new one of a restart.
func (s *supervisor) switchToNext() error {
	if s.worker.send(msgLeave) == nil {
		s.worker.awaitEnd(leavingLimit)
	}
	s.worker.kill()
	s.drainSnapshots()
	// If the kernel does not resend, the new worker's connection ends now. Its snapshot may be
	// outdated, too.
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
		s.Restarted()
		s.endRestart("")
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
	served := p.drainMessages()
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
		if p.isRestart || s.lastFailure != nil { // its msgServing was still queued
			s.recordServing()
		}
		s.drainSnapshots()
		if !isShortage(why) {
			s.shared.Crashes.Add(1)
		}
		if s.isRestarting() {
			s.killNext()
			s.failRestart(errors.New("the worker failed during the restart; try again"))
		}
		if s.shared.Replies.Load() != s.repliesBefore || time.Since(s.servingSince) > settledAfter {
			s.attempts, s.failures, s.loggedShortage = 0, 0, false
		}
	case p.isRestart:
		s.failRestart(why)
	}
	return s.scheduleRetry(why)
}

// drainSnapshots handles the snapshots that the worker sent before it ended.
func (s *supervisor) drainSnapshots() {
	for len(s.worker.messages) > 0 {
		if m := <-s.worker.messages; m.text == msgSnapshot {
			s.setSnapshot(m.file)
		}
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
		s.Log.Error("no worker is serving, because the machine lacks memory or processes: readers wait until an attempt succeeds", "err", why)
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
	if s.Connection != nil {
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
