package state

import "sync/atomic"

// maxCounted is the number of requests that are remembered as counted. If more begin while a reply
// is being sent, CountOnce may forget that it counted the reply.
const maxCounted = 1 << 14

// CountOnce calls count, which counts request id as succeeded, unless an earlier worker counted the
// request and died before it sent the reply. If a worker dies within CountOnce, the request may be
// counted twice, but it is never lost.
func (s *Shared) CountOnce(id uint64, count func()) {
	at := s.countedAt(id)
	if id&Resent != 0 && at.Load() == id&^Resent {
		return
	}
	count()
	at.Store(id &^ Resent)
}

// CountFailureOnce calls count, which counts request id as failed, unless it has been called for
// the same request before.
func (s *Shared) CountFailureOnce(id uint64, count func()) {
	const failed = 1 // ids are even
	at := s.countedAt(id)
	if at.Swap(id&^Resent|failed) != id&^Resent|failed {
		count()
	}
}

func (s *Shared) countedAt(id uint64) *atomic.Uint64 { return &s.counted[id/2%maxCounted] }
