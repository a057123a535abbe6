package state

import "sync/atomic"

// maxCounted is how many requests may begin while a reply is being sent before CountOnce can forget
// that the reply was counted.
const maxCounted = 1 << 14

// CountOnce calls count, which counts a request that has succeeded. It does not if an earlier
// worker counted the request, and died before it had sent the reply. A worker that dies within
// CountOnce may have the request counted twice, but never lost.
func (s *Shared) CountOnce(id uint64, count func()) {
	at := s.countedAt(id)
	if id&Resent != 0 && at.Load() == id&^Resent {
		return
	}
	count()
	at.Store(id &^ Resent)
}

// CountFailureOnce calls count, which counts a request that has failed, unless it was called for
// the same request before.
func (s *Shared) CountFailureOnce(id uint64, count func()) {
	const failed = 1 // ids are even
	at := s.countedAt(id)
	if at.Swap(id&^Resent|failed) != id&^Resent|failed {
		count()
	}
}

func (s *Shared) countedAt(id uint64) *atomic.Uint64 { return &s.counted[id/2%maxCounted] }
