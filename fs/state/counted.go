package state

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
