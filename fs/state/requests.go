package state

// Resent is the bit that the kernel sets in the id of a request that it resends to a new worker.
const Resent = 1 << 63

// MaxResentCrashes is the number of worker crashes, not counting the one before a request was first
// resent, after which the request fails.
const MaxResentCrashes = 5

// BeginAttempt records a request if it was resent, and reports whether MaxResentCrashes workers
// have crashed since it was first resent. Callers must serialize calls of BeginAttempt and
// EndAttempt.
func (s *Shared) BeginAttempt(id uint64) bool {
	if id&Resent == 0 {
		return false
	}
	a := s.resentRequestAt(id)
	if a.id.Load() != id { // may overwrite another request
		a.crashes.Store(s.Crashes.Load())
		a.id.Store(id)
	}
	return s.Crashes.Load() >= a.crashes.Load()+MaxResentCrashes
}

// EndAttempt records that a request has its reply.
func (s *Shared) EndAttempt(id uint64) {
	if id&Resent != 0 {
		s.resentRequestAt(id).id.CompareAndSwap(id, 0)
	}
}

// resentRequestAt returns the element for a request id. Ids are even.
func (s *Shared) resentRequestAt(id uint64) *resentRequest {
	return &s.resentRequests[id/2%maxResentRequests]
}

// maxCounted is the number of requests that CountOnce remembers. A request may be counted again if
// more requests than that follow before its reply is sent.
const maxCounted = 1 << 14

// CountOnce calls count, which counts a request as succeeded or failed, unless the request was
// counted before: it may fail after it has timed out, or be resent because a worker died before its
// reply. If a worker dies within CountOnce, the request may be counted twice, but is never missed.
//
// Callers must serialize calls for the same request.
func (s *Shared) CountOnce(id uint64, count func()) {
	id &^= Resent
	if last := &s.countedRequests[id/2%maxCounted]; last.Load() != id {
		count()
		last.Store(id)
	}
}
