package supervise

import (
	"encoding/binary"
	"os"
	"time"

	"batchfs/fs/mount"
	"batchfs/fs/state"
)

func (s *supervisor) start(reload bool) (*workerProcess, error) {
	p, err := startWorker(s.Worker(reload), s.connection, s.memory, s.Snapshot)
	if err != nil {
		return nil, machineError{err}
	}
	p.isReload = reload
	return p, nil
}

// begin promotes the standby, or a new worker, as always with reload.
func (s *supervisor) begin(reload bool) (err error) {
	if s.next != nil && reload {
		s.next.kill()
		s.next = nil
	}
	p := s.next
	s.next = nil
	if p == nil {
		if p, err = s.start(reload); err != nil {
			return err
		}
	}
	if !p.isPrepared {
		if err := p.await(msgPrepared, startLimit, s.attend); err != nil {
			return err
		}
	}
	return s.promote(p)
}

func (s *supervisor) promote(p *workerProcess) error {
	s.before = s.shared.Answered.Load()
	if err := p.socket.send(msgServe, nil); err != nil {
		return p.failure(message{})
	}
	if err := p.await(msgServing, s.silentLimit, s.attend); err != nil {
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

// standBy starts a standby if there is none: starting one takes long while readers keep every processor busy.
func (s *supervisor) standBy() {
	if s.next != nil || !s.ending.IsZero() || !s.resends() {
		return
	}
	var err error
	if s.next, err = s.start(false); err != nil {
		s.Log.Debug("no process stands by", "err", err)
	}
}

// resends says whether the kernel sends again what a dead worker left unanswered. Its first request tells.
func (s *supervisor) resends() bool {
	const flags2, hasResend = 40 + 16, 1 << (39 - 32)
	request := s.shared.Init.Get()
	return !s.NoResend && len(request) >= flags2+4 && binary.NativeEndian.Uint32(request[flags2:])&hasResend != 0
}

func (s *supervisor) receivedNext(m message) error {
	switch {
	case m.text == msgSnapshot:
		s.next.published = m.file
	case m.text == msgPrepared && s.next.isReload:
		return s.handOver()
	case m.text == msgPrepared:
		s.next.isPrepared = true
	default:
		s.drop(s.next.failure(m))
	}
	return nil
}

func (s *supervisor) drop(why error) {
	next := s.next
	s.next = nil
	next.kill()
	if next.isReload {
		s.refuse(why)
	} else {
		s.Log.Debug("no process stands by", "err", why)
	}
}

// keepSnapshot keeps the snapshot that the next worker begins from. The standby began from an older one.
func (s *supervisor) keepSnapshot(file *os.File) {
	s.Snapshot.Close()
	s.Snapshot = file
	if s.next != nil && !s.next.isReload {
		s.next.kill()
		s.next = nil
	}
}
